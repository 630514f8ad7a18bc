//! Pure: the streams of the event log, and their names in it.
//!
//! ```text
//! reservation/<id>   a coordinator's reservations
//! hold/<id>/<n>      a peer's; n tells a used-up id from its next use
//! job/<id>           a coordinator's jobs
//! ```

use std::fmt;
use std::str::FromStr;

/// What a stream is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    Reservation,
    Hold,
    Job,
}

impl StreamKind {
    const ALL: [StreamKind; 3] = [StreamKind::Reservation, StreamKind::Hold, StreamKind::Job];

    /// What the names of all streams of this kind begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            StreamKind::Reservation => "reservation/",
            StreamKind::Hold => "hold/",
            StreamKind::Job => "job/",
        }
    }
}

/// One stream of the event log. The text form is the name in the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub kind: StreamKind,
    /// The name without the prefix of its kind.
    pub id: String,
}

impl StreamId {
    pub fn reservation(id: impl Into<String>) -> StreamId {
        StreamId { kind: StreamKind::Reservation, id: id.into() }
    }

    /// The stream of a hold, which is named by the reservation's id and a number of the peer's.
    pub fn hold(name: impl Into<String>) -> StreamId {
        StreamId { kind: StreamKind::Hold, id: name.into() }
    }

    pub fn job(id: impl Into<String>) -> StreamId {
        StreamId { kind: StreamKind::Job, id: id.into() }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.prefix(), self.id)
    }
}

/// A name that no stream of this log has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the name of a stream; expected reservation/<id>, hold/<id>/<n> or job/<id>")]
pub struct UnknownStream(pub String);

impl FromStr for StreamId {
    type Err = UnknownStream;

    fn from_str(name: &str) -> Result<StreamId, UnknownStream> {
        let of_kind =
            |kind: StreamKind| Some(StreamId { kind, id: name.strip_prefix(kind.prefix())?.into() });
        StreamKind::ALL.into_iter().find_map(of_kind).ok_or_else(|| UnknownStream(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let streams = [
            (StreamId::reservation("res-00000001"), "reservation/res-00000001"),
            (StreamId::hold("res-00000001/7"), "hold/res-00000001/7"),
            (StreamId::job("job-1"), "job/job-1"),
        ];
        for (stream, name) in streams {
            assert_eq!(stream.to_string(), name);
            assert_eq!(name.parse(), Ok(stream));
        }
    }

    /// Defect G of the review: the prefix was taken off as often as it was there.
    #[test]
    fn an_id_that_begins_like_a_prefix_keeps_it() {
        let stream = StreamId::reservation("reservation/x");
        assert_eq!(stream.to_string().parse::<StreamId>().unwrap().id, "reservation/x");
    }

    #[test]
    fn other_names_are_refused() {
        for name in ["", "reservation", "reservations/1", "Job/1", "other/1"] {
            assert_eq!(name.parse::<StreamId>(), Err(UnknownStream(name.into())));
        }
    }
}
