//! Listens to what other coordinators tell about the queue, over a connection for this alone. It tells less than all:
//! what comes while the connection is lost is missed, so after each loss a listener is told that changes are unknown.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_postgres::{AsyncMessage, NoTls};
use tokio_util::sync::CancellationToken;

use super::{CONNECT_LIMIT, RECONNECT_FIRST, RECONNECT_MAX, queue, server_message};
use crate::backoff::Backoff;
use crate::reservation::log::queue::QueueChange;

/// Listens until it is stopped.
pub(super) async fn run(url: Arc<str>, changes: broadcast::Sender<QueueChange>, stop: CancellationToken) {
    let mut backoff = Backoff::new(RECONNECT_FIRST, RECONNECT_MAX);
    loop {
        let lost = tokio::select! {
            lost = listen(&url, &changes, &mut backoff) => lost,
            () = stop.cancelled() => return,
        };
        tracing::debug!(error = lost, "changes of the queue are not heard until the next connection");
        tokio::select! {
            () = tokio::time::sleep(backoff.after_failure(rand::random())) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Listens as long as a connection lasts; why it does not any more.
async fn listen(url: &str, changes: &broadcast::Sender<QueueChange>, backoff: &mut Backoff) -> String {
    let connecting = tokio::time::timeout(CONNECT_LIMIT, tokio_postgres::connect(url, NoTls)).await;
    let (client, mut connection) = match connecting {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => return server_message(&error),
        Err(_) => return format!("no answer within {CONNECT_LIMIT:?}"),
    };
    let command = format!("LISTEN {}", queue::CHANNEL);
    let mut asking = std::pin::pin!(client.batch_execute(&command));
    let mut is_listening = false;
    loop {
        // The connection answers the command while it is polled for messages.
        let message = tokio::select! {
            listening = &mut asking, if !is_listening => {
                if let Err(error) = listening {
                    return server_message(&error);
                }
                is_listening = true;
                backoff.reset();
                tell(changes, QueueChange::Unknown);
                continue;
            }
            message = poll_fn(|context| connection.poll_message(context)) => message,
        };
        match message {
            Some(Ok(AsyncMessage::Notification(note))) => tell(changes, queue::change(note.payload())),
            // Notices of the server, and what later versions of the library add.
            Some(Ok(_)) => {}
            Some(Err(error)) => return server_message(&error),
            None => return "the server has closed the connection".into(),
        }
    }
}

fn tell(changes: &broadcast::Sender<QueueChange>, change: QueueChange) {
    // An error means that there is no listener.
    changes.send(change).ok();
}
