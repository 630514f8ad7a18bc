use serde_json::{Value, json};

use super::*;
use crate::reservation::event::Transition;

fn prepare() -> Value {
    json!({
        "reservation_id": "res-00000001", "workflow_run_id": "workflow-1", "fragment_id": "frag-0001",
        "requesting_peer_id": "12D3KooWme", "service_id": "hadamard", "estimated_qubits": 2,
        "estimated_depth": 1, "priority": 0, "ttl_seconds": 60, "idempotency_key": "0123456789abcdef",
        "sent_at": "2026-04-20T00:55:00.123456Z",
    })
}

fn with(key: &str, value: Value) -> Result<PrepareRequest, DocumentError> {
    let mut document = prepare();
    document[key] = value;
    read(document.to_string().as_bytes())
}

#[test]
fn integers_may_come_as_floats_and_nothing_else_may() {
    assert_eq!(with("ttl_seconds", json!(60.0)).unwrap().ttl_seconds, 60);
    assert_eq!(with("ttl_seconds", json!(u64::MAX)).unwrap().ttl_seconds, i64::MAX);
    assert_eq!(with("ttl_seconds", json!(1e300)).unwrap().ttl_seconds, i64::MAX);
    assert_eq!(with("ttl_seconds", json!(-60)).unwrap().ttl_seconds, -60);
    for bad in [json!(60.5), json!("60"), json!(true), json!(null), json!([60])] {
        assert!(with("ttl_seconds", bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn what_may_be_missing_and_what_may_be_null() {
    let mut document = prepare();
    for key in ["priority", "ttl_seconds", "sent_at"] {
        document.as_object_mut().unwrap().remove(key);
    }
    let request: PrepareRequest = read(document.to_string().as_bytes()).unwrap();
    assert_eq!((request.priority, request.ttl_seconds), (0, 60));
    assert!(with("priority", json!(null)).is_err() && with("sent_at", json!(null)).is_err());
    let cancel: CancelRequest = read(br#"{"reservation_id": "res-00000001", "reason": null}"#).unwrap();
    assert_eq!(cancel.reason, None);
    assert!(read::<CancelRequest>(br#"{"reservation_id": "res-00000001"}"#).is_ok());
    for key in ["reservation_id", "service_id", "idempotency_key", "estimated_qubits"] {
        let mut document = prepare();
        document.as_object_mut().unwrap().remove(key);
        assert!(read::<PrepareRequest>(document.to_string().as_bytes()).is_err(), "{key}");
    }
}

#[test]
fn lengths_ranges_and_unknown_keys() {
    for (key, value) in [
        ("reservation_id", json!("1234567")),
        ("fragment_id", json!("ab")),
        ("idempotency_key", json!("1234567")),
        ("reservation_id", json!("x".repeat(5000))),
        ("priority", json!(101)),
        ("estimated_qubits", json!(0)),
        ("estimated_depth", json!(0)),
        ("sent_at", json!("yesterday")),
        ("surprise", json!(1)),
    ] {
        let error = with(key, value).unwrap_err().to_string();
        assert!(error.contains("line") || error.contains("allowed"), "{error}");
    }
    assert!(with("reservation_id", json!("ééééwwww")).is_ok(), "characters are counted, not bytes");
}

#[test]
fn a_document_is_written_with_every_field() {
    let answer = PrepareAnswer {
        reservation_id: "res-00000001".into(),
        accepting_peer_id: "12D3KooWme".into(),
        transition: Transition::Accepted.into(),
        reason: None,
        replied_at: time(1_776_646_500_123_456),
    };
    assert_eq!(
        String::from_utf8(write(&answer)).unwrap(),
        r#"{"reservation_id":"res-00000001","accepting_peer_id":"12D3KooWme","transition":"accepted","reason":null,"replied_at":"2026-04-20T00:55:00.123456Z"}"#
    );
}

/// A dispatch with this payload as it is written.
fn dispatch(payload: &str) -> Vec<u8> {
    format!(
        r#"{{"execution_id": "execution-1", "reservation_id": "res-00000001", "workflow_run_id": "workflow-1",
            "fragment_id": "frag-0001", "service_id": "hadamard", "idempotency_key": "0123456789abcdef"{payload}}}"#
    )
    .into_bytes()
}

#[test]
fn the_payload_is_read_by_itself() {
    let payload = json!({
        "plan_id": "plan-0001",
        "fragments": [{"fragment_id": "frag-0001", "service_id": "hadamard", "dependencies": ["frag-0000"]}],
        "state": {"num_qubits": 2.0, "qubit_ids": null, "amplitudes": []},
    });
    let received = ReceivedDispatch::read(dispatch(&format!(", \"input_payload\": {payload}"))).unwrap();
    assert_eq!((received.head.execution_id.as_str(), received.head.max_retries), ("execution-1", 2));
    let payload: ReceivedPayload<'_> = read(received.payload()).unwrap();
    assert_eq!((payload.state.num_qubits, payload.block_id, payload.fragments.len()), (2, None, 1));
    assert_eq!(payload.state.amplitudes(), Some("[]"));

    let without = ReceivedDispatch::read(dispatch("")).unwrap();
    assert_eq!(without.payload(), b"{}");
    let wrong = ReceivedDispatch::read(dispatch(r#", "input_payload": {"plan_id": 1}"#)).unwrap();
    assert!(
        read::<ReceivedPayload<'_>>(wrong.payload()).is_err(),
        "what is wrong in it shows when it is read"
    );
    for payload in ["null", "[]", "1", "{"] {
        let document = dispatch(&format!(", \"input_payload\": {payload}"));
        assert!(ReceivedDispatch::read(document).is_err(), "{payload}");
    }
    for bad in [
        json!({"num_qubits": 0}),
        json!({"num_qubits": 1, "measured_qubits": null}),
        json!({"num_qubits": 1, "surprise": 1}),
        json!({"num_qubits": 1, "qubit_ids": vec![1; 5000]}),
    ] {
        let bad = bad.to_string();
        assert!(read::<ReceivedState<'_>>(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn an_error_never_repeats_a_whole_document() {
    let document = format!("{{\"{}\": 1}}", "x".repeat(100_000));
    let error = read::<CancelRequest>(document.as_bytes()).unwrap_err().to_string();
    assert!(error.len() <= MAX_REASON, "{}", error.len());
}

#[test]
fn times_have_six_digits() {
    assert_eq!(time(0), "1970-01-01T00:00:00.000000Z");
    assert_eq!(time(951_868_799_999_999), "2000-02-29T23:59:59.999999Z");
    assert_eq!(time(4_107_542_400_000_000), "2100-03-01T00:00:00.000000Z");
    assert_eq!(time(-1), "1969-12-31T23:59:59.999999Z");
}
