//! Standard streams over calls.

use berth_protocols::agent::{CloseStdinRequest, GetMetricsRequest, TtyWinResizeRequest};

use crate::host::{Host, Out, Run, read, sh, soon};

pub async fn close_stdin(host: &Host, id: &str, exec_id: &str) {
    let mut request = CloseStdinRequest::new();
    request.container_id = id.to_owned();
    request.exec_id = exec_id.to_owned();
    host.client.close_stdin(soon(), &request).await.unwrap();
}

#[tokio::test]
async fn input_comes_out_and_its_end_is_seen() {
    let host = Host::start().await;
    host.run("box", Run { args: &["cat"], ..Run::default() }).await.unwrap();
    assert_eq!(host.write("box", "", b"hello").await.unwrap(), 5);
    assert_eq!(host.read("box", "", Out::Stdout).await.unwrap(), b"hello");
    // More than the two pipes hold: the write waits for the reader.
    let big = vec![b'x'; 1 << 20];
    let (client, expected) = (host.client.clone(), big.len());
    let reader = tokio::spawn(async move {
        let mut seen = 0;
        while seen < expected {
            seen += read(&client, "box", "", Out::Stdout).await.unwrap().len();
        }
        seen
    });
    assert_eq!(host.write("box", "", &big).await.unwrap() as usize, big.len());
    assert_eq!(reader.await.unwrap(), big.len());
    close_stdin(&host, "box", "").await;
    assert_eq!(host.read_all("box", "", Out::Stdout).await.unwrap(), "");
    assert_eq!(host.wait("box", "").await.unwrap(), 0);
    let closed = host.write("box", "", b"more").await.unwrap_err();
    assert!(closed.to_string().contains("stdin"), "{closed}");
    close_stdin(&host, "box", "").await;
}

#[tokio::test]
async fn writing_to_a_process_that_has_gone_says_so() {
    let host = Host::start().await;
    host.run("box", sh(&["sh", "-c", "exit 0"])).await.unwrap();
    host.wait("box", "").await.unwrap();
    let error = host.write("box", "", b"anybody?").await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

#[tokio::test]
async fn output_outlives_its_process() {
    let host = Host::start().await;
    host.run("other", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    host.run("box", sh(&["sh", "-c", "seq 1 5000"])).await.unwrap();
    assert_eq!(host.wait("box", "").await.unwrap(), 0);
    // However long it takes until somebody asks.
    host.exec("other", "ex", sh(&["sh", "-c", "sleep 1"])).await.unwrap();
    host.wait("other", "ex").await.unwrap();
    let expected: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    assert_eq!(host.read_all("box", "", Out::Stdout).await.unwrap(), expected);
}

#[tokio::test]
async fn a_background_child_keeps_output_open_but_not_the_wait() {
    let host = Host::start().await;
    host.run("box", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    let script = "exec 3<&0; (read line <&3; echo late) & echo now";
    host.exec("box", "ex", sh(&["sh", "-c", script])).await.unwrap();
    assert_eq!(host.wait("box", "ex").await.unwrap(), 0);
    assert_eq!(host.read("box", "ex", Out::Stdout).await.unwrap(), b"now\n");
    host.write("box", "ex", b"go\n").await.unwrap();
    assert_eq!(host.read_all("box", "ex", Out::Stdout).await.unwrap(), "late\n");
}

/// Until the agent has so many calls of `method` that wait.
pub async fn until_running(host: &Host, method: &str, count: usize) {
    let wanted = format!("berth_rpc_running{{method=\"{method}\"}} {count}\n");
    loop {
        let metrics = host.client.get_metrics(soon(), &GetMetricsRequest::new()).await.unwrap().metrics;
        if metrics.contains(&wanted) {
            return;
        }
    }
}

#[tokio::test]
async fn a_client_that_vanishes_takes_no_output_with_it() {
    let host = Host::start().await;
    host.run("box", sh(&["sh", "-c", "read line; seq 1 20000"])).await.unwrap();
    for _ in 0..5 {
        // Parked when it goes: its turn must go to the next.
        let client = host.connect().await;
        let parked = tokio::spawn(async move { read(&client, "box", "", Out::Stdout).await });
        until_running(&host, "ReadStdout", 1).await;
        parked.abort();
    }
    host.write("box", "", b"go\n").await.unwrap();
    let expected: String = (1..=20000).map(|n| format!("{n}\n")).collect();
    assert_eq!(host.read_all("box", "", Out::Stdout).await.unwrap(), expected);
}

#[tokio::test]
async fn a_terminal_echoes_resizes_and_ends() {
    let host = Host::start().await;
    let shell = Run { terminal: true, ..sh(&["sh", "-c", "stty size; read line; stty size; cat; echo end"]) };
    host.create("box", shell).await.unwrap();
    let mut resize = TtyWinResizeRequest::new();
    resize.container_id = "box".to_owned();
    (resize.row, resize.column) = (33, 111);
    host.client.tty_win_resize(soon(), &resize).await.unwrap();
    host.start_container("box").await.unwrap();
    let until = async |wanted: &str| {
        let mut seen = String::new();
        while !seen.contains(wanted) {
            let data = host.read("box", "", Out::Stdout).await.unwrap();
            assert!(!data.is_empty(), "{seen}");
            seen.push_str(&String::from_utf8_lossy(&data));
        }
        seen
    };
    until("33 111").await;
    (resize.row, resize.column) = (44, 99);
    host.client.tty_win_resize(soon(), &resize).await.unwrap();
    host.write("box", "", b"typed\n").await.unwrap();
    let seen = until("44 99").await;
    assert!(seen.contains("typed"), "the terminal echoes: {seen}");
    close_stdin(&host, "box", "").await;
    until("end").await;
    assert_eq!(host.wait("box", "").await.unwrap(), 0);
    assert_eq!(host.read_all("box", "", Out::Stdout).await.unwrap(), "");
    assert_eq!(host.read_all("box", "", Out::Stderr).await.unwrap(), "");

    host.run("plain", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    resize.container_id = "plain".to_owned();
    let error = host.client.tty_win_resize(soon(), &resize).await.unwrap_err();
    assert!(error.to_string().contains("no tty"), "{error}");
    let exec = Run { terminal: true, ..sh(&["sh", "-c", "test -t 0 && echo tty"]) };
    host.exec("plain", "tt", exec).await.unwrap();
    assert_eq!(host.read_all("plain", "tt", Out::Stdout).await.unwrap(), "tty\r\n");
}

#[tokio::test]
async fn execs_whose_output_nobody_reads_are_not_kept_for_ever() {
    let host = Host::start().await;
    host.run("box", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    for n in 0..300 {
        let id = format!("e{n}");
        host.exec("box", &id, sh(&["sh", "-c", "echo unread"])).await.unwrap();
        assert_eq!(host.wait("box", &id).await.unwrap(), 0);
    }
    assert!(host.read("box", "e0", Out::Stdout).await.is_err());
    assert_eq!(host.read("box", "e299", Out::Stdout).await.unwrap(), b"unread\n");
    assert!(host.descriptors("berth-worker") < 400, "{}", host.descriptors("berth-worker"));
}
