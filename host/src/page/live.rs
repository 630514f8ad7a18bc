//! The sections of a page as server-sent events: each that has changed, once a second.
//!
//! A frame is rendered when somebody looks and the last one is too old, once for all who look; without anyone nothing is
//! done. The number of streams is limited, since each holds a connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::shell::Section;

/// Streams at once.
pub const MAX_STREAMS: usize = 32;
/// An unchanged page sends a sign of life so often.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The sections of one moment.
pub type PageFrame = Arc<Vec<Section>>;

type Render = dyn Fn() -> Pin<Box<dyn Future<Output = Vec<Section>> + Send>> + Send + Sync;

/// What renders a page.
#[derive(Clone)]
pub struct LivePage(Arc<Inner>);

struct Inner {
    render: Box<Render>,
    interval: Duration,
    last: Mutex<Option<(Instant, PageFrame)>>,
    streams: Arc<Semaphore>,
    stop: CancellationToken,
}

impl LivePage {
    /// A page that is rendered at most once in each interval. Each stream takes a permit.
    pub fn new<F, R>(
        interval: Duration,
        streams: Arc<Semaphore>,
        stop: CancellationToken,
        render: F,
    ) -> LivePage
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Vec<Section>> + Send + 'static,
    {
        LivePage(Arc::new(Inner {
            render: Box::new(move || Box::pin(render())),
            interval,
            last: Mutex::default(),
            streams,
            stop,
        }))
    }

    /// The page as it is now, or was within the last interval.
    pub async fn frame(&self) -> PageFrame {
        let mut last = self.0.last.lock().await;
        if let Some((at, frame)) = &*last
            && at.elapsed() < self.0.interval
        {
            return frame.clone();
        }
        let frame: PageFrame = Arc::new((self.0.render)().await);
        *last = Some((Instant::now(), frame.clone()));
        frame
    }

    /// A stream of changed sections, all of them first; `None` when too many look already.
    pub fn stream(&self) -> Option<Response> {
        let permit = self.0.streams.clone().try_acquire_owned().ok()?;
        let watcher = Watcher {
            page: self.clone(),
            shown: None,
            next: Vec::new(),
            quiet_since: Instant::now(),
            _permit: permit,
        };
        let events = futures::stream::unfold(watcher, |mut watcher| async move {
            let event = watcher.next().await?;
            Some((Ok::<_, Infallible>(event), watcher))
        });
        let mut response = Sse::new(events).into_response();
        // Proxies that collect answers would hold events back.
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        Some(response)
    }
}

/// One who looks.
struct Watcher {
    page: LivePage,
    shown: Option<PageFrame>,
    /// Events that are still to be sent, the last one first.
    next: Vec<Event>,
    quiet_since: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Watcher {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.next.pop() {
                self.quiet_since = Instant::now();
                return Some(event);
            }
            if self.shown.is_some() {
                tokio::select! {
                    () = tokio::time::sleep(self.page.0.interval) => {}
                    () = self.page.0.stop.cancelled() => return None,
                }
            }
            let frame = self.page.frame().await;
            let shown = self.shown.replace(frame.clone()).unwrap_or_default();
            self.next = frame.iter().filter(|section| !shown.contains(section)).map(event).rev().collect();
            let ids = |frame: &[Section]| frame.iter().map(|section| section.id).collect::<Vec<_>>();
            if ids(&frame) != ids(&shown) {
                // Behind the sections: where one belongs that has come.
                self.next.insert(0, Event::default().event("order").data(ids(&frame).join(" ")));
            }
            // Sections that are no longer there.
            for gone in shown.iter().filter(|old| frame.iter().all(|new| new.id != old.id)) {
                self.next.push(Event::default().event("gone").data(gone.id));
            }
            if self.next.is_empty() && self.quiet_since.elapsed() >= KEEP_ALIVE {
                // An event and not a comment: the page sees that it is up to date.
                self.next.push(Event::default().event("alive").data("-"));
            }
        }
    }
}

fn event(section: &Section) -> Event {
    // A data field can't hold a carriage return, which HTML reads as white space all the same.
    Event::default().event("section").data(section.html.replace('\r', " "))
}
