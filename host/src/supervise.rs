//! The only spawner of long-lived tasks: each has a name, and its end before a stop is a failure of the host.
//!
//! Tasks end by themselves when they are stopped; what they serve decides in which order (see `app`).

use tokio::task::{AbortHandle, JoinSet};

use crate::error::Explain;

#[derive(Debug, thiserror::Error)]
#[error("the task '{name}' ended unexpectedly{detail}")]
pub struct TaskEnded {
    name: &'static str,
    detail: String,
}

impl Explain for TaskEnded {
    fn code(&self) -> &'static str {
        "task-ended"
    }

    fn hint(&self) -> Option<String> {
        Some("restart coda-host, and report this as a bug with the lines above".into())
    }
}

/// The running tasks.
#[derive(Default)]
pub struct Supervisor {
    tasks: JoinSet<()>,
    names: Vec<(tokio::task::Id, &'static str)>,
}

impl Supervisor {
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let handle = self.tasks.spawn(task);
        self.names.push((handle.id(), name));
        handle
    }

    /// Waits until a task ends, which none should before a stop.
    pub async fn failed(&mut self) -> TaskEnded {
        match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => TaskEnded { name: self.name(id), detail: String::new() },
            Some(Err(error)) => TaskEnded { name: self.name(error.id()), detail: format!(": {error}") },
            None => std::future::pending().await,
        }
    }

    /// Ends the tasks, each at its next await.
    pub async fn finish(mut self) {
        self.tasks.shutdown().await;
    }

    fn name(&self, id: tokio::task::Id) -> &'static str {
        self.names.iter().find(|(i, _)| *i == id).map_or("unknown", |(_, name)| name)
    }
}
