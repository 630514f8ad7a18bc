//! Pure: which elements of a register an index selects, and which values a loop takes.
//!
//! As OpenQASM 3 defines them: both ends of a range are included, a step may be negative, and a negative index counts from
//! the end, -1 being the last element. A range that selects nothing is an error, because it is never what is meant.

use super::CircuitError;
use super::budget::ExpansionBudget;
use super::expression::Expression;
use super::lexer::SourcePos;
use super::program::{Index, LoopValues, Operand, Range};

/// Largest number of a range or index.
const MAX_NUMBER: i64 = 1 << 31;

/// What an evaluation needs: the values of variables, and the budget.
pub(super) struct Evaluation<'e> {
    pub frame: &'e [f64],
    pub budget: &'e mut ExpansionBudget,
}

/// The elements that an operand stands for, in order. `qubits` are those of the gate whose body it is in.
pub(super) fn elements(
    operand: &Operand,
    qubits: &[u32],
    eval: &mut Evaluation<'_>,
) -> Result<Vec<u32>, CircuitError> {
    match operand {
        // The reader resolved the name to a place in the gate.
        Operand::OfGate(place) => Ok(qubits.get(*place).copied().into_iter().collect()),
        Operand::Elements { pos, name, elements, indexes } => {
            eval.budget.expand(1 + indexes.len(), *pos)?;
            let mut selected = elements.to_vec();
            for index in indexes {
                selected = select(index, &selected, name, eval)?;
            }
            Ok(selected)
        }
    }
}

fn select(
    index: &Index,
    from: &[u32],
    name: &str,
    eval: &mut Evaluation<'_>,
) -> Result<Vec<u32>, CircuitError> {
    let length = from.len();
    let element = |at: i64, pos: SourcePos| {
        let place = if at < 0 { at + i64::try_from(length).unwrap_or(i64::MAX) } else { at };
        let found = usize::try_from(place).ok().and_then(|place| from.get(place)).copied();
        found.ok_or_else(|| pos.error(format!("'{name}' has {length} elements, there is no {at}")))
    };
    let number = |expression: &Expression, eval: &mut Evaluation<'_>| {
        expression.whole(eval.frame, eval.budget, "the index", -MAX_NUMBER..=MAX_NUMBER)
    };
    match index {
        Index::One(expression) => Ok(vec![element(number(expression, eval)?, expression.pos())?]),
        Index::Set { pos, members } => {
            let places: Result<Vec<i64>, CircuitError> = members.iter().map(|e| number(e, eval)).collect();
            let selected: Result<Vec<u32>, CircuitError> =
                places?.into_iter().map(|at| element(at, *pos)).collect();
            selected
        }
        Index::Range(range) => {
            let last_place = i64::try_from(length).unwrap_or(i64::MAX) - 1;
            // `-1` is the last element, so that `[-3:-1]` are the last three.
            let place = |at: i64| if at < 0 { at + last_place + 1 } else { at };
            let step = step(range, eval)?;
            let (from_start, from_end) = (0, last_place);
            let open = if step > 0 { (from_start, from_end) } else { (from_end, from_start) };
            let first = range.first.as_ref().map(|e| number(e, eval)).transpose()?.map_or(open.0, place);
            let last = range.last.as_ref().map(|e| number(e, eval)).transpose()?.map_or(open.1, place);
            let places = inclusive(range, first, step, last, length)?;
            places
                .into_iter()
                .map(|at| match usize::try_from(at).ok().and_then(|at| from.get(at)) {
                    Some(element) => Ok(*element),
                    None => {
                        let text = format!("'{name}' has {length} elements, the range goes to {at}");
                        Err(range.pos.error(text))
                    }
                })
                .collect()
        }
    }
}

fn step(range: &Range, eval: &mut Evaluation<'_>) -> Result<i64, CircuitError> {
    let Some(step) = &range.step else { return Ok(1) };
    match step.whole(eval.frame, eval.budget, "the step", -MAX_NUMBER..=MAX_NUMBER)? {
        0 => Err(step.pos().error("a step of 0 never reaches the end of the range")),
        step => Ok(step),
    }
}

/// The numbers of a range, at most `most` and one.
fn inclusive(range: &Range, first: i64, step: i64, last: i64, most: usize) -> Result<Vec<i64>, CircuitError> {
    let is_empty = if step > 0 { first > last } else { first < last };
    if is_empty {
        let hint = if step > 0 { "; a descending range needs a negative step, as in 3:-1:0" } else { "" };
        return Err(range.pos.error(format!("the range from {first} to {last} is empty{hint}")));
    }
    let numbers = std::iter::successors(Some(first), |n| n.checked_add(step));
    let within = numbers.take_while(|n| if step > 0 { *n <= last } else { *n >= last });
    Ok(within.take(most.saturating_add(1)).collect())
}

/// The values that a loop takes, in order.
pub(super) fn loop_values(
    values: &LoopValues,
    is_whole: bool,
    eval: &mut Evaluation<'_>,
) -> Result<Vec<f64>, CircuitError> {
    match values {
        LoopValues::Set(members) => {
            let value = |e: &Expression, eval: &mut Evaluation<'_>| {
                let value = e.value(eval.frame, eval.budget)?;
                match is_whole && value.fract() != 0.0 {
                    true => Err(e
                        .pos()
                        .error(format!("{value} is no whole number, which the loop's type asks for"))),
                    false => Ok(value),
                }
            };
            members.iter().map(|e| value(e, eval)).collect()
        }
        LoopValues::Range(range) => {
            let step = step(range, eval)?;
            let end = |e: &Option<Expression>, eval: &mut Evaluation<'_>| match e {
                Some(e) => e.whole(eval.frame, eval.budget, "the end of the range", -MAX_NUMBER..=MAX_NUMBER),
                None => Err(range.pos.error("a loop needs both ends of its range")),
            };
            let (first, last) = (end(&range.first, eval)?, end(&range.last, eval)?);
            let is_empty = if step > 0 { first > last } else { first < last };
            if is_empty {
                return Ok(Vec::new());
            }
            let count = (last - first) / step + 1;
            // More would be refused one by one.
            eval.budget.expand(usize::try_from(count).unwrap_or(usize::MAX), range.pos)?;
            Ok((0..count).map(|n| (first + n * step) as f64).collect())
        }
    }
}
