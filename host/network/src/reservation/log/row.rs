//! One event as it is stored in the log, with a checksum over all of it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::reservation::event::VERSION;
use crate::reservation::stream::StreamId;

/// One row of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub position: i64,
    /// The name of its stream, as it is written: a damaged one may be none.
    pub stream: String,
    pub seq: i64,
    /// Microseconds since 1970.
    pub at: i64,
    pub version: i64,
    /// The fact's JSON.
    pub body: String,
    pub sum: String,
}

impl Row {
    pub(in crate::reservation) fn new(
        position: i64,
        stream: &StreamId,
        seq: i64,
        at: i64,
        body: String,
    ) -> Row {
        let version = i64::from(VERSION);
        let stream = stream.to_string();
        let sum = checksum(position, &stream, seq, at, version, &body);
        Row { position, stream, seq, at, version, body, sum }
    }

    /// Reads the row's fact.
    ///
    /// # Errors
    /// When the row is damaged, newer than this host, or its fact can't be read. The text says what is wrong.
    pub fn fact<T: DeserializeOwned>(&self) -> Result<T, String> {
        self.check()?;
        serde_json::from_str(&self.body).map_err(|e| format!("its fact can't be read: {e}"))
    }

    /// Checks that the row is as it was written.
    ///
    /// # Errors
    /// When the checksum differs, or the row is newer than this host. The text says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let sum = checksum(self.position, &self.stream, self.seq, self.at, self.version, &self.body);
        if sum != self.sum {
            return Err(format!("its checksum is {}, its content has {sum}", self.sum));
        }
        if self.version > i64::from(VERSION) {
            return Err(format!("it has version {}, known is {VERSION}", self.version));
        }
        Ok(())
    }
}

fn checksum(position: i64, stream: &str, seq: i64, at: i64, version: i64, body: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{position}|{stream}|{seq}|{at}|{version}|"));
    hash.update(body);
    hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// The JSON of a fact. Facts are plain data, whose JSON can't fail.
pub(in crate::reservation) fn fact_json<T: Serialize>(fact: &T) -> String {
    serde_json::to_string(fact).unwrap_or_default()
}
