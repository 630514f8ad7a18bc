//! One document each way on a stream: bounded, with a deadline, whatever the other side does.
//!
//! As a server it takes the request as soon as its bytes are one document, since some peers never half-close; as a
//! client it writes, half-closes (the behaviour does) and reads to the document's end, so that a reset behind the
//! answer doesn't matter. All documents being read share a budget of memory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::request_response;

use crate::peers::scan::{ScanProgress, Scanner};

/// A protocol id.
#[derive(Debug, Clone)]
pub struct Protocol(pub Arc<str>);

impl AsRef<str> for Protocol {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Memory that documents on their way may take together.
#[derive(Debug, Clone)]
pub struct Budget(Arc<AtomicUsize>);

impl Budget {
    pub fn new(bytes: usize) -> Budget {
        Budget(Arc::new(AtomicUsize::new(bytes)))
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }
}

/// A document, and its part of the budget.
#[derive(Debug)]
pub struct Document {
    pub bytes: Vec<u8>,
    budget: Option<(Budget, usize)>,
}

impl Document {
    pub fn new(bytes: Vec<u8>) -> Document {
        Document { bytes, budget: None }
    }
}

impl AsRef<[u8]> for Document {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        if let Some((budget, bytes)) = &self.budget {
            budget.0.fetch_add(*bytes, Ordering::AcqRel);
        }
    }
}

#[derive(Debug, Clone)]
pub struct Codec {
    pub max_bytes: usize,
    /// How long a request may take to arrive.
    pub read_limit: Duration,
    pub budget: Budget,
}

/// The stream ended before the first byte of a document. It is the inner error of the [`io::Error`] that the codec
/// returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream ended without a document")]
pub struct EmptyDocument;

/// Bytes by which the memory of a document grows.
const CHUNK: usize = 16 << 10;

impl Codec {
    async fn read<T: AsyncRead + Unpin>(&self, io: &mut T) -> io::Result<Document> {
        let mut document = Document { bytes: Vec::new(), budget: Some((self.budget.clone(), 0)) };
        let mut scanner = Scanner::default();
        // Small documents come in one piece: on the stack first, and only what came is kept.
        let mut piece = [0_u8; 2048];
        loop {
            let got = io.read(&mut piece).await?;
            if got == 0 {
                let kind = io::ErrorKind::UnexpectedEof;
                return Err(match document.bytes.len() {
                    0 => io::Error::new(kind, EmptyDocument),
                    n => {
                        let text = format!("the stream ended in the middle of a document, after {n} bytes");
                        io::Error::new(kind, text)
                    }
                });
            }
            if document.bytes.len() + got > self.max_bytes {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("a document of more than {} bytes", self.max_bytes),
                ));
            }
            self.reserve(&mut document, got)?;
            document.bytes.extend_from_slice(&piece[..got]);
            match scanner.look(&document.bytes) {
                ScanProgress::Whole(end) => {
                    document.bytes.truncate(end);
                    return Ok(document);
                }
                ScanProgress::Never => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "no JSON object"));
                }
                ScanProgress::Part => {}
            }
        }
    }

    fn reserve(&self, document: &mut Document, more: usize) -> io::Result<()> {
        let needed = (document.bytes.len() + more).div_ceil(CHUNK) * CHUNK;
        let Some((budget, held)) = &mut document.budget else { return Ok(()) };
        if needed > *held {
            if !budget.take(needed - *held) {
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, "too many documents at once"));
            }
            *held = needed;
            // A small document takes what it has; a large one grows in steps.
            if needed > CHUNK {
                document.bytes.reserve(needed - document.bytes.len());
            }
        }
        Ok(())
    }
}

impl request_response::Codec for Codec {
    type Protocol = Protocol;
    type Request = Document;
    type Response = Document;

    async fn read_request<T>(&mut self, _: &Protocol, io: &mut T) -> io::Result<Document>
    where
        T: AsyncRead + Unpin + Send,
    {
        match tokio::time::timeout(self.read_limit, self.read(io)).await {
            Ok(read) => read,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the request did not come whole in time")),
        }
    }

    async fn read_response<T>(&mut self, _: &Protocol, io: &mut T) -> io::Result<Document>
    where
        T: AsyncRead + Unpin + Send,
    {
        self.read(io).await
    }

    async fn write_request<T>(&mut self, _: &Protocol, io: &mut T, document: Document) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        io.write_all(&document.bytes).await?;
        io.flush().await
    }

    async fn write_response<T>(&mut self, _: &Protocol, io: &mut T, document: Document) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        io.write_all(&document.bytes).await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;

    /// Gives its bytes in pieces, then the end, or nothing more for ever.
    struct Pieces {
        bytes: Vec<u8>,
        size: usize,
        at: usize,
        ends: bool,
    }

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let left = self.bytes.len() - self.at;
            if left == 0 && !self.ends {
                return Poll::Pending;
            }
            let n = left.min(self.size).min(buffer.len());
            buffer[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
            self.at += n;
            Poll::Ready(Ok(n))
        }
    }

    fn codec(max_bytes: usize, budget: usize) -> Codec {
        Codec { max_bytes, read_limit: Duration::from_millis(20), budget: Budget::new(budget) }
    }

    async fn request(codec: &Codec, text: &str, size: usize, ends: bool) -> Result<Document, String> {
        use request_response::Codec as _;
        let mut io = Pieces { bytes: text.as_bytes().to_vec(), size, at: 0, ends };
        let read = codec.clone().read_request(&Protocol("/x".into()), &mut io).await;
        read.map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn a_document_is_taken_as_soon_as_it_is_whole() {
        let codec = codec(1000, 1 << 20);
        for (size, ends) in [(1, true), (7, false), (1000, false), (1000, true)] {
            let document = request(&codec, "{\"a\": [1, \"}\"]}\n ", size, ends).await.unwrap();
            assert_eq!(document.bytes, b"{\"a\": [1, \"}\"]}");
        }
    }

    #[tokio::test]
    async fn an_empty_answer_is_an_error_of_its_own_type() {
        use request_response::Codec as _;
        let mut io = Pieces { bytes: Vec::new(), size: 1, at: 0, ends: true };
        let read = codec(1000, 1 << 20).read_response(&Protocol("/x".into()), &mut io).await;
        let error = read.expect_err("there is no document");
        assert!(error.get_ref().is_some_and(|inner| inner.is::<EmptyDocument>()), "{error}");
    }

    #[tokio::test]
    async fn what_never_becomes_one_is_refused_in_time_and_leaves_no_memory_behind() {
        let codec = codec(20_000, 64 << 10);
        for (text, size, ends, why) in [
            ("{\"a\":".to_string(), 3, true, "middle of a document"),
            (String::new(), 1, true, "without a document"),
            ("{\"a\":".into(), 3, false, "in time"),
            ("[1]".into(), 3, false, "no JSON object"),
            ("{} {}".into(), 100, false, "no JSON object"),
            (" ".repeat(30_000), 5000, false, "more than 20000 bytes"),
        ] {
            let error = request(&codec, &text, size, ends).await.unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(codec.budget.0.load(Ordering::Acquire), 64 << 10);
        let small = Codec { budget: Budget::new(20 << 10), ..codec };
        let big = format!("{{\"a\":\"{}\"}}", "x".repeat(18_000));
        let first = request(&small, "{}", 10, false).await.unwrap();
        assert!(request(&small, &big, 5000, false).await.unwrap_err().contains("at once"));
        drop(first);
        assert_eq!(small.budget.0.load(Ordering::Acquire), 20 << 10);
    }
}
