//! A request's body that tells when all of it has arrived: whether a request that takes too long is the client's doing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Set when a body has arrived.
#[derive(Debug, Clone, Default)]
pub struct BodyArrival(Arc<AtomicBool>);

impl BodyArrival {
    pub fn is_complete(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

pub struct ReceivedBody {
    body: Incoming,
    arrival: BodyArrival,
}

impl ReceivedBody {
    pub fn new(body: Incoming, arrival: BodyArrival) -> ReceivedBody {
        let received = ReceivedBody { body, arrival };
        received.note_end();
        received
    }

    fn note_end(&self) {
        if self.body.is_end_stream() {
            self.arrival.0.store(true, Ordering::Release);
        }
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if frame.is_none() {
            this.arrival.0.store(true, Ordering::Release);
        }
        this.note_end();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
