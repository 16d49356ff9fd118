//! Looking at a running container: statistics, a scrape of all metrics, and how soon an OOM kill is told.

use std::time::{Duration, Instant};

use berth_protocols::agent::{
    GetMetricsRequest, GetOOMEventRequest, Metrics, OOMEvent, RemoveContainerRequest, StatsContainerRequest,
    StatsContainerResponse,
};
use protobuf::well_known_types::empty::Empty;

use crate::{sample::Samples, server::Server, table::Table};

const ROUNDS: usize = 200;
const KILLS: usize = 5;

pub fn measure(table: &mut Table, agent: &mut Server) {
    agent.begin(&agent.container("observed", &["sleep", "1000"]));
    let request = StatsContainerRequest { container_id: "observed".into(), ..Default::default() };
    let (mut stats, mut scrapes) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        stats.time(|| agent.call::<StatsContainerResponse>("StatsContainer", &request));
        scrapes.time(|| agent.call::<Metrics>("GetMetrics", &GetMetricsRequest::new()));
    }
    table.figure("StatsContainer, p50", stats.median() * 1e3, "us", None);
    table.figure("GetMetrics, p50", scrapes.median(), "ms", None);
    remove(agent, "observed");
    oom(table, agent);
}

/// From the moment the exit of the killed process is told, which is a little after the kill itself.
fn oom(table: &mut Table, agent: &mut Server) {
    let mut samples = Samples::default();
    for round in 0..KILLS {
        let id = format!("oom{round}");
        let mut container = agent.container(&id, &["sh", "-c", "x=a; while :; do x=$x$x; done"]);
        let resources = container.linux().Resources.mut_or_insert_default();
        resources.Memory.mut_or_insert_default().Limit = 32 << 20;
        agent.begin(&container);
        agent.wait(&id, "");
        let killed = Instant::now();
        agent.call::<OOMEvent>("GetOOMEvent", &GetOOMEventRequest::new());
        samples.push(killed.elapsed().max(Duration::from_micros(1)));
        remove(agent, &id);
    }
    table.figure("OOM kill: exit to event, p50", samples.median(), "ms", Some(100.0));
}

fn remove(agent: &mut Server, id: &str) {
    let request = RemoveContainerRequest { container_id: id.into(), ..Default::default() };
    agent.call::<Empty>("RemoveContainer", &request);
}
