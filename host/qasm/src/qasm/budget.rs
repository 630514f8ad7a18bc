//! Pure: how much work a source may cause: what expands is counted over the whole circuit, so that no short source takes
//! long or much memory.

use super::CircuitError;
use super::lexer::SourcePos;

/// Gates that are expanded, copied or changed by a modifier, and statements of loops.
const MAX_STEPS: usize = 500_000;
/// Steps of expressions that aren't constant.
const MAX_EVALUATED: usize = 1_000_000;

/// What is spent so far.
#[derive(Debug, Default)]
pub struct ExpansionBudget {
    steps: usize,
    evaluated: usize,
}

impl ExpansionBudget {
    /// Spends steps of expansion.
    ///
    /// # Errors
    /// When there are none left.
    pub fn expand(&mut self, steps: usize, pos: SourcePos) -> Result<(), CircuitError> {
        self.steps = self.steps.saturating_add(steps);
        match self.steps > MAX_STEPS {
            true => {
                Err(pos
                    .error("this expands to too much: gates and loops of a circuit may take 500,000 steps"))
            }
            false => Ok(()),
        }
    }

    /// Spends steps of an expression.
    ///
    /// # Errors
    /// When there are none left.
    pub fn evaluate(&mut self, steps: usize, pos: SourcePos) -> Result<(), CircuitError> {
        self.evaluated = self.evaluated.saturating_add(steps);
        match self.evaluated > MAX_EVALUATED {
            true => Err(pos.error(
                "expressions of gates and loops are too much to evaluate: write fewer or shorter ones",
            )),
            false => Ok(()),
        }
    }
}
