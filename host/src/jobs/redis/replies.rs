//! Replies of Redis, decoded by type: a value, an absence, or an error. Pure.
//!
//! An error is never an absence: a server that is busy, loading, no master or that denies a command knows nothing
//! about a job or a message, which is not the same as a job or a message that does not exist. Both protocol versions
//! are read: RESP3 answers XREADGROUP with a map.

use redis::{ServerError, Value};

use crate::jobs::message::Message;
use crate::model::{MessageId, cut};

/// Characters of an unexpected reply that are shown.
const MAX_SHOWN_CHARS: usize = 120;

/// A reply that says nothing about what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The server's own words.
    #[error("Redis refused {command}: {text}")]
    Refused { command: &'static str, text: String },
    #[error("Redis answered {command} with {found}, expected {expected}")]
    Unexpected { command: &'static str, found: String, expected: &'static str },
}

impl ReplyError {
    /// The first word of a refusal, by which the server classes its errors.
    pub fn code(&self) -> Option<&str> {
        match self {
            ReplyError::Refused { text, .. } => text.split(' ').next(),
            ReplyError::Unexpected { .. } => None,
        }
    }
}

/// A server's error in its own words.
pub(super) fn server_words(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default()).trim_end().to_string()
}

/// Nothing but the confirmation of a command.
pub(super) fn confirmation(command: &'static str, reply: Value) -> Result<(), ReplyError> {
    match reply {
        Value::Okay => Ok(()),
        other => Err(unexpected(command, &other, "OK")),
    }
}

/// The confirmation of a write: how much it changed, which may be nothing.
pub(super) fn number_of_changes(command: &'static str, reply: Value) -> Result<(), ReplyError> {
    match reply {
        Value::Int(_) => Ok(()),
        other => Err(unexpected(command, &other, "a number")),
    }
}

/// A number, of a reply that may leave it out.
pub(super) fn number(value: Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(n),
        _ => None,
    }
}

/// Text, of a reply that may leave it out.
pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

pub(super) fn unexpected(command: &'static str, found: &Value, expected: &'static str) -> ReplyError {
    match found {
        Value::ServerError(error) => ReplyError::Refused { command, text: server_words(error) },
        other => {
            let found = cut(&format!("{other:?}"), MAX_SHOWN_CHARS).to_string();
            ReplyError::Unexpected { command, found, expected }
        }
    }
}

/// Text, or nothing.
pub(super) fn optional_text(command: &'static str, reply: Value) -> Result<Option<String>, ReplyError> {
    match reply {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Value::SimpleString(text) => Ok(Some(text)),
        Value::Int(number) => Ok(Some(number.to_string())),
        other => Err(unexpected(command, &other, "text or nil")),
    }
}

/// A field of a hash whose key may be of another type, which is then no job's state.
pub(super) fn hash_field(command: &'static str, reply: Value) -> Result<Option<String>, ReplyError> {
    match reply {
        Value::ServerError(error) if error.code() == "WRONGTYPE" => Ok(None),
        other => optional_text(command, other),
    }
}

/// Whether a key exists, by its value.
pub(super) fn existence(command: &'static str, reply: Value) -> Result<bool, ReplyError> {
    match reply {
        // A cancel key of any type cancels.
        Value::ServerError(error) if error.code() == "WRONGTYPE" => Ok(true),
        other => Ok(optional_text(command, other)?.is_some()),
    }
}

/// The entries of XREADGROUP for one stream; none after the block time.
pub(super) fn new_messages(reply: Value) -> Result<Vec<Message>, ReplyError> {
    const COMMAND: &str = "XREADGROUP";
    let entries = match reply {
        Value::Nil => return Ok(Vec::new()),
        Value::Map(streams) => streams.into_iter().next().map(|(_, entries)| entries),
        Value::Array(streams) => match streams.into_iter().next() {
            None => None,
            Some(Value::Array(parts)) => parts.into_iter().nth(1),
            Some(other) => return Err(unexpected(COMMAND, &other, "a stream with its entries")),
        },
        other => return Err(unexpected(COMMAND, &other, "a list of streams")),
    };
    match entries {
        None => Ok(Vec::new()),
        Some(entries) => {
            Ok(entry_list(COMMAND, entries)?.into_iter().map(|(id, fields)| Message { id, fields }).collect())
        }
    }
}

/// The entry of an XRANGE over one id; `None` when the stream has no such entry.
pub(super) fn entry_at(id: MessageId, reply: Value) -> Result<Option<Message>, ReplyError> {
    const COMMAND: &str = "XRANGE";
    let mut entries = entry_list(COMMAND, reply)?.into_iter();
    match entries.next() {
        None => Ok(None),
        Some((found, fields)) if found == id => Ok(Some(Message { id, fields })),
        Some((found, _)) => {
            let found = format!("the entry {found}");
            Err(ReplyError::Unexpected { command: COMMAND, found, expected: "the entry that was asked for" })
        }
    }
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// `[[id, [key, value, ...]], ...]`.
fn entry_list(command: &'static str, reply: Value) -> Result<Vec<(MessageId, Fields)>, ReplyError> {
    const EXPECTED: &str = "a list of entries";
    let Value::Array(entries) = reply else { return Err(unexpected(command, &reply, EXPECTED)) };
    entries
        .into_iter()
        .map(|entry| {
            let Value::Array(parts) = entry else { return Err(unexpected(command, &entry, EXPECTED)) };
            let mut parts = parts.into_iter();
            let id = message_id(command, parts.next().unwrap_or(Value::Nil))?;
            let fields = match parts.next() {
                // An entry that was deleted while it was pending.
                None | Some(Value::Nil) => Vec::new(),
                Some(Value::Array(flat)) => {
                    let mut flat = flat.into_iter();
                    let mut fields = Vec::new();
                    while let (Some(key), Some(value)) = (flat.next(), flat.next()) {
                        fields.push((bytes(command, key)?, bytes(command, value)?));
                    }
                    fields
                }
                Some(Value::Map(pairs)) => {
                    let pair = |(key, value)| Ok((bytes(command, key)?, bytes(command, value)?));
                    pairs.into_iter().map(pair).collect::<Result<Fields, ReplyError>>()?
                }
                Some(other) => return Err(unexpected(command, &other, "an entry's fields")),
            };
            Ok((id, fields))
        })
        .collect()
}

/// The ids of an XPENDING over a range.
pub(super) fn pending_ids(reply: Value) -> Result<Vec<MessageId>, ReplyError> {
    const COMMAND: &str = "XPENDING";
    const EXPECTED: &str = "a list of pending messages";
    let Value::Array(rows) = reply else { return Err(unexpected(COMMAND, &reply, EXPECTED)) };
    rows.into_iter()
        .map(|row| match row {
            Value::Array(columns) => message_id(COMMAND, columns.into_iter().next().unwrap_or(Value::Nil)),
            other => Err(unexpected(COMMAND, &other, EXPECTED)),
        })
        .collect()
}

fn message_id(command: &'static str, value: Value) -> Result<MessageId, ReplyError> {
    const EXPECTED: &str = "an entry id";
    let shown = unexpected(command, &value, EXPECTED);
    optional_text(command, value)?.and_then(|text| text.parse().ok()).ok_or(shown)
}

fn bytes(command: &'static str, value: Value) -> Result<Vec<u8>, ReplyError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Int(number) => Ok(number.to_string().into_bytes()),
        other => Err(unexpected(command, &other, "bytes")),
    }
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    /// What a server can say instead of an answer.
    const REFUSALS: [&str; 11] = [
        "NOPERM User node has no permissions to run the command",
        "BUSY Redis is busy running a script",
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "MOVED 3999 127.0.0.1:6381",
        "CLUSTERDOWN The cluster is down",
        "MISCONF Errors writing to the AOF file",
        "OOM command not allowed when used memory > 'maxmemory'",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "NOAUTH Authentication required.",
        "ERR something else",
    ];

    fn reply(resp: &str) -> Value {
        parse_redis_value(resp.as_bytes()).unwrap_or_else(|e| panic!("{resp:?}: {e}"))
    }

    fn id(ms: u64) -> MessageId {
        MessageId { ms, seq: 0 }
    }

    /// Each decoder, by the command that it reads: whether it found an absence.
    type Decoder = (&'static str, fn(Value) -> Result<bool, ReplyError>);
    const DECODERS: [Decoder; 9] = [
        ("XREADGROUP", |v| Ok(new_messages(v)?.is_empty())),
        ("XRANGE", |v| Ok(entry_at(MessageId { ms: 1, seq: 0 }, v)?.is_none())),
        ("XPENDING", |v| Ok(pending_ids(v)?.is_empty())),
        ("HGET", |v| Ok(hash_field("HGET", v)?.is_none())),
        ("GET", |v| Ok(!existence("GET", v)?)),
        ("GET", |v| Ok(optional_text("GET", v)?.is_none())),
        // A confirmation is not an absence either.
        ("HSET", |v| number_of_changes("HSET", v).map(|()| true)),
        ("XACK", |v| number_of_changes("XACK", v).map(|()| true)),
        ("XGROUP", |v| confirmation("XGROUP", v).map(|()| true)),
    ];

    #[test]
    fn an_error_is_not_an_absence() {
        for refusal in REFUSALS {
            for (n, (command, decode)) in DECODERS.iter().enumerate() {
                let found = decode(reply(&format!("-{refusal}\r\n")));
                // A status hash or a cancel key of another type is an answer.
                let is_an_answer = refusal.starts_with("WRONGTYPE") && matches!(n, 3 | 4);
                match found {
                    Ok(_) if is_an_answer => {}
                    Err(ReplyError::Refused { command: of, text }) => {
                        assert_eq!(of, *command);
                        assert_eq!(text, refusal, "in the server's own words");
                    }
                    other => panic!("{command} with {refusal}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_reply_of_another_type_is_an_error() {
        let others = ["*1\r\n:7\r\n", "%1\r\n+a\r\n:1\r\n", "#t\r\n", ",1.5\r\n"];
        for (n, (command, decode)) in DECODERS.iter().enumerate() {
            for other in others {
                // The map is XREADGROUP's RESP3 form, with entries of the wrong type.
                let found = decode(reply(other));
                assert!(
                    matches!(found, Err(ReplyError::Unexpected { .. })),
                    "{n} {command} {other:?}: {found:?}"
                );
            }
        }
        assert!(entry_at(id(2), reply("*1\r\n*2\r\n$3\r\n1-0\r\n*0\r\n")).is_err(), "another entry");
    }

    #[test]
    fn values_and_absences_are_read_in_both_protocol_versions() {
        let entry = "*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$2\r\n\u{1}v\r\n";
        let fields = vec![(b"k".to_vec(), b"\x01v".to_vec())];
        let of = |m: Message| (m.id, m.fields);
        let read = |resp: String| new_messages(reply(&resp)).unwrap().into_iter().map(of).collect::<Vec<_>>();
        assert_eq!(read(format!("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n{entry}")), [(id(1), fields.clone())]);
        assert_eq!(read(format!("%1\r\n$1\r\ns\r\n*1\r\n{entry}")), [(id(1), fields.clone())]);
        assert!(read("*-1\r\n".into()).is_empty() && read("_\r\n".into()).is_empty());

        assert_eq!(entry_at(id(1), reply(&format!("*1\r\n{entry}"))).unwrap().map(of), Some((id(1), fields)));
        assert!(entry_at(id(1), reply("*0\r\n")).unwrap().is_none());
        assert_eq!(pending_ids(reply("*1\r\n*4\r\n$3\r\n1-0\r\n$1\r\nc\r\n:5\r\n:1\r\n")).unwrap(), [id(1)]);
        assert!(pending_ids(reply("*0\r\n")).unwrap().is_empty());
        assert_eq!(hash_field("HGET", reply("$9\r\nexecuting\r\n")).unwrap().as_deref(), Some("executing"));
        assert_eq!(hash_field("HGET", reply("$-1\r\n")).unwrap(), None);
        assert!(
            existence("GET", reply("$0\r\n\r\n")).unwrap() && !existence("GET", reply("$-1\r\n")).unwrap()
        );
    }
}
