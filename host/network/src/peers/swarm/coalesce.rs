//! Flush coalescing: Yamux over a connection that flushes once before each read.
//!
//! Yamux flushes behind every frame, and a request is three of them: the protocol's name, the document, the end. Each
//! would be a Noise message, a TCP segment and a wake-up of the other side. Here a flush is only noted, and done when
//! Yamux has nothing more to write and turns to reading, which it always does before it waits: the frames between two reads
//! leave together, and none later than before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::yamux;

/// The upgrade of a connection to Yamux.
#[derive(Debug, Clone, Default)]
pub struct CoalescedYamux(yamux::Config);

impl UpgradeInfo for CoalescedYamux {
    type Info = <yamux::Config as UpgradeInfo>::Info;
    type InfoIter = <yamux::Config as UpgradeInfo>::InfoIter;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.protocol_info()
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundConnectionUpgrade<T> for CoalescedYamux {
    type Output = <yamux::Config as InboundConnectionUpgrade<CoalescedFlush<T>>>::Output;
    type Error = <yamux::Config as InboundConnectionUpgrade<CoalescedFlush<T>>>::Error;
    type Future = <yamux::Config as InboundConnectionUpgrade<CoalescedFlush<T>>>::Future;

    fn upgrade_inbound(self, io: T, info: Self::Info) -> Self::Future {
        self.0.upgrade_inbound(CoalescedFlush::new(io), info)
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<T> for CoalescedYamux {
    type Output = <yamux::Config as OutboundConnectionUpgrade<CoalescedFlush<T>>>::Output;
    type Error = <yamux::Config as OutboundConnectionUpgrade<CoalescedFlush<T>>>::Error;
    type Future = <yamux::Config as OutboundConnectionUpgrade<CoalescedFlush<T>>>::Future;

    fn upgrade_outbound(self, io: T, info: Self::Info) -> Self::Future {
        self.0.upgrade_outbound(CoalescedFlush::new(io), info)
    }
}

/// A connection whose flushes wait for the next read.
#[derive(Debug)]
pub struct CoalescedFlush<T> {
    io: T,
    /// Something was written that is perhaps not sent.
    unsent: bool,
}

impl<T> CoalescedFlush<T> {
    fn new(io: T) -> CoalescedFlush<T> {
        CoalescedFlush { io, unsent: false }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for CoalescedFlush<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.unsent
            && let Poll::Ready(sent) = Pin::new(&mut self.io).poll_flush(cx)
        {
            sent?;
            self.unsent = false;
        }
        // Reading goes on while the other side takes nothing, else two that both write would wait for ever.
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CoalescedFlush<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.unsent = true;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sends what is unsent, as every stream does.
        Pin::new(&mut self.io).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _};

    use super::*;

    /// Says what is done with it; `full` takes nothing.
    #[derive(Default)]
    struct Wire {
        done: Vec<&'static str>,
        full: bool,
    }

    impl AsyncRead for Wire {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
            self.done.push("read");
            Poll::Ready(Ok(1))
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.done.push("write");
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.done.push("flush");
            if self.full { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.done.push("close");
            Poll::Ready(Ok(()))
        }
    }

    fn frame(io: &mut CoalescedFlush<Wire>) {
        io.write_all(b"frame").now_or_never().unwrap().unwrap();
        io.flush().now_or_never().unwrap().unwrap();
    }

    #[test]
    fn frames_of_one_turn_leave_together_before_the_next_read() {
        let mut io = CoalescedFlush::new(Wire::default());
        let mut one = [0];
        frame(&mut io);
        frame(&mut io);
        io.read_exact(&mut one).now_or_never().unwrap().unwrap();
        io.read_exact(&mut one).now_or_never().unwrap().unwrap();
        assert_eq!(io.io.done, ["write", "write", "flush", "read", "read"]);
    }

    #[test]
    fn a_side_that_takes_nothing_is_read_from_and_tried_again() {
        let mut io = CoalescedFlush::new(Wire { full: true, ..Wire::default() });
        let mut one = [0];
        frame(&mut io);
        io.read_exact(&mut one).now_or_never().unwrap().unwrap();
        io.io.full = false;
        io.read_exact(&mut one).now_or_never().unwrap().unwrap();
        io.read_exact(&mut one).now_or_never().unwrap().unwrap();
        io.close().now_or_never().unwrap().unwrap();
        assert_eq!(io.io.done, ["write", "flush", "read", "flush", "read", "read", "close"]);
    }
}
