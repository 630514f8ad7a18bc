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

use crate::peers::scan::{Scanner, Seen};

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

/// Grown by so much at a time.
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
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    match document.bytes.len() {
                        0 => "an empty document".into(),
                        n => format!("the stream ended in the middle of a document, after {n} bytes"),
                    },
                ));
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
                Seen::Whole(end) => {
                    document.bytes.truncate(end);
                    return Ok(document);
                }
                Seen::Never => return Err(io::Error::new(io::ErrorKind::InvalidData, "no JSON object")),
                Seen::Part => {}
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
            document.bytes.reserve(needed - document.bytes.len());
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
