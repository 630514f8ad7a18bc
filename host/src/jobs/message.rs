//! What a stream message says: who sent it, where the answer goes, what to run.
//!
//! In two steps, since a duplicate needs no parsing: [`envelope`] reads who and where, [`work`] the circuit
//! and the shots. Pure; fields are bytes, because a message may hold anything.

use std::sync::Arc;

use coda_plugin_abi::{Device, Program};

use crate::model::{JobId, MessageId, cut};

/// Longest `ir_json`.
pub const MAX_IR_BYTES: usize = 16 << 20;
const MAX_JOB_ID_BYTES: usize = 256;
/// Longest value kept of a message that can't be answered.
const MAX_KEPT_CHARS: usize = 2000;

/// A stream entry as it came.
#[derive(Debug, Clone)]
pub struct Message {
    pub id: MessageId,
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Message {
    fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(k, _)| k == name.as_bytes()).map(|(_, v)| v.as_slice())
    }

    /// The job's id, unchecked.
    pub fn job_id(&self) -> Option<&[u8]> {
        self.field("job_id")
    }

    /// What it takes in memory, in bytes.
    pub fn size(&self) -> usize {
        self.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// The fields as JSON for the dead-letter list, long values cut and bytes that are not text replaced.
    pub fn to_json(&self) -> String {
        let text = |b: &[u8]| cut(&String::from_utf8_lossy(b), MAX_KEPT_CHARS).to_string();
        let map: serde_json::Map<String, serde_json::Value> =
            self.fields.iter().map(|(k, v)| (text(k), text(v).into())).collect();
        serde_json::Value::Object(map).to_string()
    }
}

/// Who sent a message and where its answer goes.
#[derive(Debug, Clone)]
pub struct Envelope {
    pub job_id: JobId,
    pub callback_url: Arc<str>,
    /// Scheme, host and port of the callback.
    pub origin: Arc<str>,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Work {
    pub program: Arc<Program>,
    pub shots: u32,
}

/// Reads `job_id` and `callback_url`; `allowed` gives the origin of a URL that an answer may go to, or says why
/// it may not.
///
/// # Errors
/// The reason why the message can't be answered, for the dead-letter list.
pub fn envelope(
    message: &Message,
    allowed: impl Fn(&str) -> Result<Arc<str>, String>,
) -> Result<Envelope, String> {
    let text = |name: &'static str| {
        let bytes = message.field(name).ok_or_else(|| format!("the message has no field '{name}'"))?;
        std::str::from_utf8(bytes).map_err(|_| format!("the field '{name}' is not UTF-8 text"))
    };
    let job_id = text("job_id")?;
    if job_id.is_empty() || job_id.len() > MAX_JOB_ID_BYTES {
        return Err(format!("job_id has {} bytes, allowed are 1 to {MAX_JOB_ID_BYTES}", job_id.len()));
    }
    if job_id.chars().any(char::is_control) {
        return Err("job_id holds control characters".into());
    }
    let callback_url = text("callback_url")?;
    let origin = allowed(callback_url).map_err(|why| format!("callback_url: {why}"))?;
    Ok(Envelope { job_id: job_id.into(), callback_url: callback_url.into(), origin })
}

/// Reads the circuit and the shots.
///
/// # Errors
/// What is wrong, for the failure webhook.
pub fn work(message: &Message) -> Result<Work, String> {
    let shots = shots(message.field("shots"))?;
    let json = message.field("ir_json").ok_or("the message has no field 'ir_json'")?;
    if json.len() > MAX_IR_BYTES {
        return Err(format!("ir_json has {} bytes, allowed are {MAX_IR_BYTES}", json.len()));
    }
    let program = Program::parse(json).map_err(|e| e.to_string())?;
    Ok(Work { program: Arc::new(program), shots })
}

/// Whether the device takes such a circuit.
///
/// # Errors
/// What it doesn't take.
pub fn fits(program: &Program, shots: u32, device: &Device) -> Result<(), String> {
    if program.num_qubits() > device.num_qubits {
        let (has, wants) = (device.num_qubits, program.num_qubits());
        return Err(format!("the circuit has {wants} qubits, the device {} has {has}", device.name));
    }
    if !device.targets.contains(&program.target()) {
        let known: Vec<&str> = device.targets.iter().map(|t| t.name()).collect();
        return Err(format!(
            "the circuit is for target {}, the device {} takes {}",
            program.target(),
            device.name,
            known.join(", ")
        ));
    }
    match device.max_shots {
        Some(max) if shots > max => {
            Err(format!("{shots} shots are asked for, the device {} takes at most {max}", device.name))
        }
        _ => Ok(()),
    }
}

/// A decimal integer from 1 to 2^31-1, blanks around it allowed.
fn shots(field: Option<&[u8]>) -> Result<u32, String> {
    let bytes = field.ok_or("the message has no field 'shots'")?;
    let shown = || cut(&String::from_utf8_lossy(bytes), 40).to_string();
    let text = std::str::from_utf8(bytes).map_err(|_| "shots is not UTF-8 text".to_string())?;
    let digits = text.trim();
    // Signs, underscores, exponents and fractions are not shots.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("shots is {:?}, expected a whole number from 1 to 2147483647", shown()));
    }
    let value = digits.trim_start_matches('0').parse::<u32>().ok();
    value
        .filter(|n| *n >= 1 && *n <= i32::MAX as u32)
        .ok_or_else(|| format!("shots is {:?}, allowed are 1 to 2147483647", shown()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coda_plugin_abi::Target;

    const IR: &str = r#"{"target":"cz","num_qubits":3,"gates":[],"measurements":[2,0],
        "metadata":{"source_hash":"h","compiled_at":"t"}}"#;

    fn message(fields: &[(&str, &[u8])]) -> Message {
        let fields = fields.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.to_vec())).collect();
        Message { id: MessageId::ZERO, fields }
    }

    fn any(_: &str) -> Result<Arc<str>, String> {
        Ok("http://h".into())
    }

    fn device() -> Device {
        Device { max_shots: Some(5000), ..Device::new("d", 3, [Target::Cz]) }
    }

    #[test]
    fn shots_are_plain_digits_in_range() {
        for (text, value) in [("100", 100), (" 12 ", 12), ("007", 7), ("2147483647", 2_147_483_647)] {
            assert_eq!(shots(Some(text.as_bytes())), Ok(value), "{text}");
        }
        let huge = "9".repeat(5000);
        let bad =
            ["", " ", "0", "00", "-1", "+5", "1e3", "100.0", "1_000", "99999999999999999999", "2147483648"];
        for text in bad.into_iter().chain(["many", "１２", &huge]) {
            let e = shots(Some(text.as_bytes())).unwrap_err();
            assert!(e.starts_with("shots is") && e.len() < 200, "{text}: {e}");
        }
        assert!(shots(Some(b"\xff1")).unwrap_err().contains("UTF-8"));
        assert!(shots(None).unwrap_err().contains("no field 'shots'"));
    }

    #[test]
    fn what_cannot_be_answered_says_why() {
        let case = |fields: &[(&str, &[u8])]| envelope(&message(fields), any).unwrap_err();
        assert!(case(&[]).contains("no field 'job_id'"));
        assert!(case(&[("job_id", b"")]).contains("0 bytes"));
        assert!(case(&[("job_id", &[b'x'; 257])]).contains("257 bytes"));
        assert!(case(&[("job_id", b"a\r\nb")]).contains("control"));
        assert!(case(&[("job_id", b"\xff")]).contains("UTF-8"));
        assert!(case(&[("job_id", b"J")]).contains("no field 'callback_url'"));
        let refused = envelope(&message(&[("job_id", b"J"), ("callback_url", b"x")]), |_| Err("no".into()));
        assert_eq!(refused.unwrap_err(), "callback_url: no");
        let good = message(&[("note", b"\xff\xfe"), ("job_id", b"J"), ("callback_url", b"http://h/")]);
        assert_eq!(&*envelope(&good, any).unwrap().job_id, "J");
    }

    #[test]
    fn work_must_fit_the_device() {
        let with = |ir: &str, shots: &str| {
            let work = work(&message(&[("ir_json", ir.as_bytes()), ("shots", shots.as_bytes())]))?;
            fits(&work.program, work.shots, &device()).map(|()| work)
        };
        assert_eq!(with(IR, "100").unwrap().shots, 100);
        assert!(with(IR, "5001").unwrap_err().contains("at most 5000"));
        assert!(with(&IR.replace(":3", ":4"), "1").unwrap_err().contains("4 qubits, the device d has 3"));
        let e = with(&IR.replace("\"cz\"", "\"iswap\""), "1").unwrap_err();
        assert!(e.contains("target iswap, the device d takes cz"), "{e}");
        let big = format!("{}{IR}", " ".repeat(MAX_IR_BYTES));
        assert!(with(&big, "1").unwrap_err().contains("allowed are 16777216"));
    }

    #[test]
    fn kept_fields_are_text_and_bounded() {
        let json = message(&[("a", &[0xff; 10_000]), ("b", b"x")]).to_json();
        assert!(json.contains("\"b\":\"x\"") && json.len() < 7000);
    }
}
