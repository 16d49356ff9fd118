//! Calls that steer and watch containers and the guest.

use berth_protocols::agent::{
    GetDiagnosticDataRequest, GetMetricsRequest, GetOOMEventRequest, PauseContainerRequest,
    ReseedRandomDevRequest, ResumeContainerRequest, SetGuestDateTimeRequest, StatsContainerRequest,
    StatsContainerResponse, UpdateContainerRequest,
};
use ttrpc::context::Context;

use super::{Agent, Error, Result};

impl Agent {
    /// StatsContainer.
    pub async fn stats_container(&self, id: &str) -> Result<StatsContainerResponse> {
        let request = StatsContainerRequest { container_id: id.to_owned(), ..Default::default() };
        let reply = self.agent.stats_container(self.limited(), &request).await;
        reply.map_err(|error| Error::of("StatsContainer", error))
    }

    /// PauseContainer.
    pub async fn pause_container(&self, request: &PauseContainerRequest) -> Result<()> {
        let reply = self.agent.pause_container(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("PauseContainer", error))
    }

    /// ResumeContainer.
    pub async fn resume_container(&self, request: &ResumeContainerRequest) -> Result<()> {
        let reply = self.agent.resume_container(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("ResumeContainer", error))
    }

    /// UpdateContainer.
    pub async fn update_container(&self, request: &UpdateContainerRequest) -> Result<()> {
        let reply = self.agent.update_container(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("UpdateContainer", error))
    }

    /// GetOOMEvent: waits for the next kill and tells its container.
    pub async fn oom_event(&self) -> Result<String> {
        let request = GetOOMEventRequest::new();
        let reply = self.agent.get_oom_event(Context::default(), &request).await;
        reply.map(|event| event.container_id).map_err(|error| Error::of("GetOOMEvent", error))
    }

    /// GetMetrics, in Prometheus's text format.
    pub async fn metrics(&self) -> Result<String> {
        let request = GetMetricsRequest::new();
        let reply = self.agent.get_metrics(self.limited(), &request).await;
        reply.map(|reply| reply.metrics).map_err(|error| Error::of("GetMetrics", error))
    }

    /// GetDiagnosticData.
    pub async fn diagnostic_data(&self, request: &GetDiagnosticDataRequest) -> Result<String> {
        let reply = self.agent.get_diagnostic_data(self.limited(), request).await;
        reply.map(|reply| reply.data).map_err(|error| Error::of("GetDiagnosticData", error))
    }

    /// SetGuestDateTime.
    pub async fn set_guest_date_time(&self, request: &SetGuestDateTimeRequest) -> Result<()> {
        let reply = self.agent.set_guest_date_time(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("SetGuestDateTime", error))
    }

    /// ReseedRandomDev.
    pub async fn reseed(&self, request: &ReseedRandomDevRequest) -> Result<()> {
        let reply = self.agent.reseed_random_dev(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("ReseedRandomDev", error))
    }
}
