//! Accepts connections of a local HTTP service, with limits on their number, their time and their memory.
//!
//! A silent or slow client holds a connection and nothing else: its headers, its body and its reading of the answer have
//! time limits, and when there are too many connections the longest unused one of the address that has the most goes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use super::http::ApiProblem;
use super::received_body::{BodyArrival, ReceivedBody};
use crate::connections::{ConnectionTable, Eviction};

/// Most connections that are open at once.
const MAX_CONNECTIONS: usize = 256;
/// Pause after a connection could not be accepted, for instance because no descriptor was free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The open connections.
struct Open {
    table: ConnectionTable<u64>,
    stops: HashMap<u64, CancellationToken>,
    next: u64,
    started: Instant,
}

impl Open {
    fn close(&mut self, eviction: Option<Eviction<u64>>) {
        let Some(Eviction { key, address }) = eviction else { return };
        self.stops.remove(&key).inspect(CancellationToken::cancel);
        let now = self.started.elapsed();
        if self.table.warns(address, now) {
            tracing::warn!(
                %address,
                limit = MAX_CONNECTIONS,
                "too many connections to the local service; closing the longest unused one of this address"
            );
        }
    }

    fn insert(&mut self, address: IpAddr, stop: CancellationToken) -> u64 {
        self.next += 1;
        let (key, now) = (self.next, self.started.elapsed());
        self.stops.insert(key, stop);
        let evicted = self.table.insert(key, address, now);
        self.close(evicted);
        key
    }

    fn touch(&mut self, key: u64) {
        let now = self.started.elapsed();
        self.table.touch(key, now);
    }

    fn give_one_up(&mut self, error: &io::Error) {
        let now = self.started.elapsed();
        // Not the fault of one address.
        if self.table.warns(IpAddr::from([0, 0, 0, 0]), now) {
            tracing::warn!(%error, "a connection to the local service could not be accepted");
        }
        let evicted = self.table.evict(None);
        self.close(evicted);
    }

    fn remove(&mut self, key: u64) {
        self.table.remove(key);
        self.stops.remove(&key);
    }
}

/// Serves a router until stopped.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    request_timeout: Duration,
    stop: CancellationToken,
) {
    let open = Arc::new(Mutex::new(Open {
        table: ConnectionTable::new(MAX_CONNECTIONS),
        stops: HashMap::new(),
        next: 0,
        started: Instant::now(),
    }));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, client)) => {
                let connection = ClientConnection {
                    open: open.clone(),
                    router: router.clone(),
                    request_timeout,
                    stop: stop.child_token(),
                };
                connection.spawn(stream, client);
            }
            Err(error) => {
                // Out of file descriptors, most likely: one that is unused is given up.
                open.lock().give_one_up(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct ClientConnection {
    open: Arc<Mutex<Open>>,
    router: Router,
    request_timeout: Duration,
    stop: CancellationToken,
}

impl ClientConnection {
    fn spawn(self, stream: TcpStream, client: SocketAddr) {
        let key = self.open.lock().insert(client.ip(), self.stop.clone());
        tokio::spawn(async move {
            let (open, limit, router) = (self.open.clone(), self.request_timeout, self.router);
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                open.lock().touch(key);
                answer(router.clone(), request, limit)
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limit)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(TimedWrites::new(stream, limit)), service);
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the local service failed");
                },
                () = self.stop.cancelled() => {}
            }
            self.open.lock().remove(key);
        });
    }
}

/// Until when a request must be answered. It is an extension of each request, so that a handler which waits on purpose
/// can move it.
#[derive(Debug, Clone)]
pub struct AnswerDeadline(watch::Sender<tokio::time::Instant>);

impl AnswerDeadline {
    /// Gives the request so much more time.
    pub fn extend(&self, by: Duration) {
        self.0.send_modify(|deadline| *deadline += by);
    }
}

/// Answers a request, whose body must come in time. Whether it has come tells who was too slow.
async fn answer(
    mut router: Router,
    request: Request<Incoming>,
    limit: Duration,
) -> Result<Response<Body>, Infallible> {
    let deadline = watch::Sender::new(tokio::time::Instant::now() + limit);
    let mut moves = deadline.subscribe();
    let arrival = BodyArrival::default();
    let mut request = request.map(|body| ReceivedBody::new(body, arrival.clone()));
    request.extensions_mut().insert(AnswerDeadline(deadline));
    let mut answering = std::pin::pin!(router.call(request));
    loop {
        let until = *moves.borrow_and_update();
        tokio::select! {
            answer = &mut answering => return answer,
            () = tokio::time::sleep_until(until) => {
                let problem = match arrival.is_complete() {
                    true => ApiProblem::new(
                        StatusCode::SERVICE_UNAVAILABLE,
                        format!("the request was not answered within {limit:?}; try again later"),
                    ),
                    false => ApiProblem::new(
                        StatusCode::REQUEST_TIMEOUT,
                        format!("the request did not arrive within {limit:?}"),
                    ),
                };
                return Ok(problem.into_response());
            }
            // Once the handler has dropped the deadline it can't be moved any more.
            Ok(()) = moves.changed() => {}
        }
    }
}

/// A connection whose writes fail when the other side does not read for too long.
struct TimedWrites {
    stream: TcpStream,
    limit: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl TimedWrites {
    fn new(stream: TcpStream, limit: Duration) -> TimedWrites {
        TimedWrites { stream, limit, waiting: None }
    }

    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(written) = write(Pin::new(&mut self.stream), cx) {
            self.waiting = None;
            return Poll::Ready(written);
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl AsyncRead for TimedWrites {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TimedWrites {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.timed(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.timed(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.timed(cx, |stream, cx| stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.timed(cx, |stream, cx| stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
