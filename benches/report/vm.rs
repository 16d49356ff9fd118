//! A VM from power-on to its agent's first reply, and a call over vsock.

use std::time::Instant;

use berth::Vm;

use crate::{sample::Samples, table::Table};

const BOOTS: usize = 5;
const CALLS: usize = 500;

pub fn measure(table: &mut Table) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut boots, mut calls) = (Samples::default(), Samples::default());
    runtime.block_on(async {
        for _ in 0..BOOTS {
            let start = Instant::now();
            let vm = Vm::boot(&[]).await;
            let guest = vm.client().await;
            check(&guest).await;
            boots.push(start.elapsed());
            for _ in 0..CALLS / BOOTS {
                let start = Instant::now();
                check(&guest).await;
                calls.push(start.elapsed());
            }
        }
    });
    table.figure("VM: power-on to first reply", boots.median(), "ms", None);
    table.figure("VM: null call over vsock, p50", calls.median(), "ms", None);
}

async fn check(guest: &berth::Guest) {
    guest.health.check(ttrpc::context::with_timeout(0), &Default::default()).await.expect("Check");
}
