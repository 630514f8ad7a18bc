//! Descriptors that go to another process through a socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of one message.
pub const MAX_DESCRIPTORS: usize = 64;

/// Sends these descriptors, or the word that there are none.
///
/// # Errors
/// When there are too many, or the other end is gone.
pub fn send_descriptors(socket: &UnixStream, descriptors: &[OwnedFd]) -> io::Result<()> {
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other(format!("more than {MAX_DESCRIPTORS} descriptors")));
    }
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors of one message.
///
/// # Errors
/// When the other end is gone, or this process may not open so many.
pub fn receive_descriptors(socket: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let message =
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if message.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        return Err(io::Error::other("some descriptors did not arrive: too many files are open"));
    }
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(descriptors)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn descriptors_arrive_in_order_and_are_the_same_files() {
        let (here, there) = UnixStream::pair().unwrap();
        let pairs: Vec<_> = (0..MAX_DESCRIPTORS).map(|_| UnixStream::pair().unwrap()).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let theirs: Vec<OwnedFd> = theirs.into_iter().map(OwnedFd::from).collect();
        send_descriptors(&here, &theirs).unwrap();
        drop(theirs);
        let received = receive_descriptors(&there).unwrap();
        assert_eq!(received.len(), MAX_DESCRIPTORS);
        for (n, (mut ours, theirs)) in ours.into_iter().zip(received).enumerate() {
            ours.write_all(&[n as u8]).unwrap();
            let mut byte = [0];
            UnixStream::from(theirs).read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], n as u8);
        }
        send_descriptors(&here, &[]).unwrap();
        assert!(receive_descriptors(&there).unwrap().is_empty());
        drop(here);
        assert!(receive_descriptors(&there).is_err());
    }
}
