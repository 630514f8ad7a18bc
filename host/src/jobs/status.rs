//! The fields of a job's status hash, as the protocol writes them. Pure.

use super::admission::PastEnd;
use super::table::TerminalStatus;
use crate::model::MessageId;
use crate::state::db::Status;

/// Names and values of hash fields.
pub type Fields = Vec<(&'static str, String)>;

/// Of a job that enters the plugin.
pub fn executing(id: MessageId, qpu_id: &str, at: String) -> Fields {
    let mut fields = vec![("state", "executing".into()), ("started_at", at)];
    fields.extend(origin(id, qpu_id));
    fields
}

/// Of a job that ended.
pub fn terminal(id: MessageId, qpu_id: &str, status: TerminalStatus) -> Fields {
    let mut fields = match status {
        TerminalStatus::Cancelled { at } => vec![("state", "cancelled".into()), ("cancelled_at", at)],
        TerminalStatus::Ended(PastEnd { status: Status::Completed, finished_at, .. }) => {
            vec![("state", Status::Completed.name().into()), ("completed_at", finished_at)]
        }
        TerminalStatus::Ended(PastEnd { status: Status::Failed, error, finished_at }) => vec![
            ("state", Status::Failed.name().into()),
            ("error", error.unwrap_or_default()),
            ("failed_at", finished_at),
        ],
    };
    fields.extend(origin(id, qpu_id));
    fields
}

/// Whose state it is; also for jobs that never ran, so that a recovery can tell which message ended.
fn origin(id: MessageId, qpu_id: &str) -> [(&'static str, String); 2] {
    [("message_id", id.to_string()), ("qpu_id", qpu_id.into())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_own_fields() {
        let id = MessageId { ms: 7, seq: 1 };
        let names = |fields: Fields| fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" ");
        let end = |status, error: Option<&str>| {
            let past = PastEnd { status, error: error.map(Into::into), finished_at: "t".into() };
            terminal(id, "q", TerminalStatus::Ended(past))
        };
        assert_eq!(names(executing(id, "q", "t".into())), "state started_at message_id qpu_id");
        assert_eq!(names(end(Status::Completed, None)), "state completed_at message_id qpu_id");
        assert_eq!(names(end(Status::Failed, Some("e"))), "state error failed_at message_id qpu_id");
        let cancelled = terminal(id, "q", TerminalStatus::Cancelled { at: "t".into() });
        assert_eq!(names(cancelled.clone()), "state cancelled_at message_id qpu_id");
        assert_eq!(cancelled[2], ("message_id", "7-1".to_string()));
    }
}
