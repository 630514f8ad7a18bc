//! Pure: the transitions that answers name. A name that is not in the contract is kept as it was written, so that the
//! reader decides what it means instead of failing at the whole document.

use serde::{Deserialize, Serialize};

use crate::reservation::event::Transition;

/// The transition of a reservation in the answer to a prepare, commit or cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum AnsweredTransition {
    Known(Transition),
    /// A name that the contract does not have.
    Unknown(String),
}

impl AnsweredTransition {
    /// The name as it is on the wire.
    pub fn name(&self) -> &str {
        match self {
            AnsweredTransition::Known(transition) => transition.name(),
            AnsweredTransition::Unknown(name) => name,
        }
    }
}

impl From<Transition> for AnsweredTransition {
    fn from(transition: Transition) -> AnsweredTransition {
        AnsweredTransition::Known(transition)
    }
}

impl From<String> for AnsweredTransition {
    fn from(name: String) -> AnsweredTransition {
        match Transition::from_name(&name) {
            Some(transition) => AnsweredTransition::Known(transition),
            None => AnsweredTransition::Unknown(name),
        }
    }
}

impl From<AnsweredTransition> for String {
    fn from(transition: AnsweredTransition) -> String {
        transition.name().into()
    }
}

/// The transition of an execution in the answer to a dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ExecutionTransition {
    Dispatched,
    Running,
    Checkpointed,
    Completed,
    Failed,
    Retrying,
    Cancelled,
    /// A name that the contract does not have.
    Unknown(String),
}

impl ExecutionTransition {
    /// The name as it is on the wire.
    pub fn name(&self) -> &str {
        match self {
            ExecutionTransition::Dispatched => "dispatched",
            ExecutionTransition::Running => "running",
            ExecutionTransition::Checkpointed => "checkpointed",
            ExecutionTransition::Completed => "completed",
            ExecutionTransition::Failed => "failed",
            ExecutionTransition::Retrying => "retrying",
            ExecutionTransition::Cancelled => "cancelled",
            ExecutionTransition::Unknown(name) => name,
        }
    }
}

impl From<String> for ExecutionTransition {
    fn from(name: String) -> ExecutionTransition {
        match name.as_str() {
            "dispatched" => ExecutionTransition::Dispatched,
            "running" => ExecutionTransition::Running,
            "checkpointed" => ExecutionTransition::Checkpointed,
            "completed" => ExecutionTransition::Completed,
            "failed" => ExecutionTransition::Failed,
            "retrying" => ExecutionTransition::Retrying,
            "cancelled" => ExecutionTransition::Cancelled,
            _ => ExecutionTransition::Unknown(name),
        }
    }
}

impl From<ExecutionTransition> for String {
    fn from(transition: ExecutionTransition) -> String {
        transition.name().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_as_the_contract_has_them() {
        for transition in Transition::ALL {
            let text = format!("\"{}\"", transition.name());
            let read: AnsweredTransition = serde_json::from_str(&text).unwrap();
            assert_eq!(read, AnsweredTransition::Known(transition));
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        for name in ["dispatched", "running", "checkpointed", "completed", "failed", "retrying", "cancelled"]
        {
            let text = format!("\"{name}\"");
            let read: ExecutionTransition = serde_json::from_str(&text).unwrap();
            assert!(!matches!(read, ExecutionTransition::Unknown(_)), "{name}");
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
    }

    #[test]
    fn other_names_are_kept_and_other_types_are_refused() {
        for text in ["\"Committed\"", "\"\"", "\"reserved\""] {
            let read: AnsweredTransition = serde_json::from_str(text).unwrap();
            assert!(matches!(read, AnsweredTransition::Unknown(_)), "{text}");
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
            let read: ExecutionTransition = serde_json::from_str(text).unwrap();
            assert!(matches!(read, ExecutionTransition::Unknown(_)), "{text}");
        }
        for text in ["1", "null", "{}"] {
            assert!(serde_json::from_str::<AnsweredTransition>(text).is_err(), "{text}");
            assert!(serde_json::from_str::<ExecutionTransition>(text).is_err(), "{text}");
        }
    }
}
