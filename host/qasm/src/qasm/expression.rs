//! Pure: constant expressions: numbers, names, `pi tau euler`, functions, `+ - * / % ** ^`, brackets.
//!
//! A power binds more than a sign in front of it and takes its right side first. There is one reader for circuits and
//! for the statements that peers exchange; where the two differ is said by [`Dialect`]. An expression is read once, into
//! steps for a stack, and evaluated as often as its gate or loop is expanded; what is constant is a number at once.

use std::collections::HashMap;
use std::f64::consts::{E, PI, TAU};

use super::CircuitError;
use super::budget::ExpansionBudget;
use super::lexer::{SourcePos, Token, tokens};

const MAX_DEPTH: u32 = 64;

/// A run of tokens that is read once.
pub struct Tokens<'a> {
    tokens: &'a [(Token<'a>, SourcePos)],
    at: usize,
}

impl<'a> Tokens<'a> {
    /// `tokens` ends with [`Token::End`].
    pub fn new(tokens: &'a [(Token<'a>, SourcePos)]) -> Tokens<'a> {
        Tokens { tokens, at: 0 }
    }

    pub fn peek(&self) -> Token<'a> {
        self.tokens.get(self.at).map_or(Token::End, |(t, _)| *t)
    }

    /// The token that stands `n` behind the next one.
    pub fn peek_behind(&self, n: usize) -> Token<'a> {
        self.tokens.get(self.at + n).map_or(Token::End, |(t, _)| *t)
    }

    pub fn pos(&self) -> SourcePos {
        let last = self.tokens.last().map_or(SourcePos { line: 1, column: 1 }, |(_, p)| *p);
        self.tokens.get(self.at).map_or(last, |(_, p)| *p)
    }

    pub fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub fn is_at(&self, mark: &str) -> bool {
        matches!(self.peek(), Token::Mark(m) if m == mark)
    }

    pub fn eat(&mut self, mark: &str) -> bool {
        let found = self.is_at(mark);
        self.at += usize::from(found);
        found
    }

    pub fn expect(&mut self, mark: &str) -> Result<(), CircuitError> {
        match self.eat(mark) {
            true => Ok(()),
            false => Err(self.pos().error(format!("expected '{mark}', found {}", self.peek().shown()))),
        }
    }

    pub fn word(&mut self, what: &str) -> Result<&'a str, CircuitError> {
        let pos = self.pos();
        match self.next() {
            Token::Word(word) => Ok(word),
            other => Err(pos.error(format!("expected {what}, found {}", other.shown()))),
        }
    }
}

/// What names mean where an expression is read: the parameters of a gate and variables of loops, by their place in the
/// frame that an evaluation is given, then constants.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'n> {
    pub slots: &'n [String],
    pub constants: Option<&'n HashMap<String, f64>>,
}

/// Whose rules an expression follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// A circuit: constants of OpenQASM by their exact names, functions, a remainder with the sign of the left side.
    Circuit,
    /// A statement of the peers' contract: `pi`, `tau` and `e` in any case, no functions, and Python's remainder, which
    /// has the sign of the right side.
    Statement,
}

/// An expression that was read.
#[derive(Debug, Clone)]
pub struct Expression {
    steps: Box<[Step]>,
    pos: SourcePos,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Number(f64),
    /// The value at this place of the frame.
    Slot(usize),
    Negate,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder(Dialect),
    Power,
    Call(fn(f64) -> f64),
}

impl Step {
    fn binary(self, left: f64, right: f64) -> Option<f64> {
        Some(match self {
            Step::Add => left + right,
            Step::Subtract => left - right,
            Step::Multiply => left * right,
            Step::Divide => left / right,
            Step::Remainder(Dialect::Circuit) => left % right,
            Step::Remainder(Dialect::Statement) => left - right * (left / right).floor(),
            Step::Power => left.powf(right),
            _ => return None,
        })
    }

    fn unary(self, value: f64) -> Option<f64> {
        Some(match self {
            Step::Negate => -value,
            Step::Call(function) => function(value),
            _ => return None,
        })
    }
}

impl Expression {
    pub fn pos(&self) -> SourcePos {
        self.pos
    }

    /// Its value with this frame.
    ///
    /// # Errors
    /// When the value, or one on the way to it, is not finite, or the budget is spent.
    pub fn value(&self, frame: &[f64], budget: &mut ExpansionBudget) -> Result<f64, CircuitError> {
        if let [Step::Number(value)] = self.steps[..] {
            return Ok(value);
        }
        budget.evaluate(self.steps.len(), self.pos)?;
        let mut stack: Vec<f64> = Vec::with_capacity(8);
        for step in &self.steps {
            let value = match *step {
                Step::Number(value) => Some(value),
                Step::Slot(slot) => frame.get(slot).copied(),
                Step::Negate | Step::Call(_) => stack.pop().and_then(|value| step.unary(value)),
                _ => {
                    let right = stack.pop();
                    stack.pop().zip(right).and_then(|(left, right)| step.binary(left, right))
                }
            };
            // The reader makes no steps without operands: what is missing is no number either.
            stack.push(finite(value.unwrap_or(f64::NAN), self.pos)?);
        }
        finite(stack.pop().unwrap_or(f64::NAN), self.pos)
    }

    /// Its value as a whole number within bounds.
    ///
    /// # Errors
    /// Those of [`Expression::value`], and when the value is not whole or out of bounds.
    pub fn whole(
        &self,
        frame: &[f64],
        budget: &mut ExpansionBudget,
        what: &str,
        bounds: std::ops::RangeInclusive<i64>,
    ) -> Result<i64, CircuitError> {
        let n = self.value(frame, budget)?;
        let (first, last) = (*bounds.start(), *bounds.end());
        match n.fract() == 0.0 && (first as f64..=last as f64).contains(&n) {
            // In range by the line before.
            true => Ok(n as i64),
            false => {
                Err(self.pos.error(format!("{what} is {n}, a whole number from {first} to {last} is needed")))
            }
        }
    }
}

/// Reads one expression of a circuit.
///
/// # Errors
/// When the tokens are not an expression, or it is constant and has no finite value.
pub fn expression(tokens: &mut Tokens<'_>, scope: Scope<'_>) -> Result<Expression, CircuitError> {
    read(tokens, scope, Dialect::Circuit)
}

/// Reads the parameters of a statement: expressions that are separated by commas.
///
/// # Errors
/// When the text is anything else, or a value is not finite.
pub fn statement_parameters(text: &str) -> Result<Vec<f64>, CircuitError> {
    let tokens = tokens(text)?;
    let mut t = Tokens::new(&tokens);
    let (mut values, mut budget) = (Vec::new(), ExpansionBudget::default());
    if t.peek() == Token::End {
        return Ok(values);
    }
    loop {
        let parameter = read(&mut t, Scope::default(), Dialect::Statement)?;
        values.push(parameter.value(&[], &mut budget)?);
        match t.next() {
            Token::End => return Ok(values),
            Token::Mark(",") => {}
            other => return Err(t.pos().error(format!("expected ',' or the end, found {}", other.shown()))),
        }
    }
}

fn read(t: &mut Tokens<'_>, scope: Scope<'_>, dialect: Dialect) -> Result<Expression, CircuitError> {
    let pos = t.pos();
    let mut reader = Reader { scope, dialect, depth: 0, steps: Vec::new(), pos };
    reader.sum(t)?;
    Ok(Expression { steps: reader.steps.into(), pos })
}

fn finite(value: f64, pos: SourcePos) -> Result<f64, CircuitError> {
    match value.is_finite() {
        true => Ok(value),
        false => Err(pos.error("this expression has no finite value")),
    }
}

struct Reader<'n> {
    scope: Scope<'n>,
    dialect: Dialect,
    depth: u32,
    steps: Vec<Step>,
    pos: SourcePos,
}

impl Reader<'_> {
    /// Adds a step; with constant operands its value instead.
    fn push(&mut self, step: Step) -> Result<(), CircuitError> {
        let folded = match (&self.steps[..], step) {
            ([.., Step::Number(value)], Step::Negate | Step::Call(_)) => step.unary(*value).map(|v| (v, 1)),
            ([.., Step::Number(left), Step::Number(right)], _) => step.binary(*left, *right).map(|v| (v, 2)),
            _ => None,
        };
        match folded {
            Some((value, operands)) => {
                self.steps.truncate(self.steps.len() - operands);
                self.steps.push(Step::Number(finite(value, self.pos)?));
            }
            None => self.steps.push(step),
        }
        Ok(())
    }

    fn sum(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        self.product(t)?;
        loop {
            // `1 ++ 1` adds a positive number; the lexer reads the two signs as one mark.
            if t.eat("+") || t.eat("++") {
                self.product(t)?;
                self.push(Step::Add)?;
            } else if t.eat("-") {
                self.product(t)?;
                self.push(Step::Subtract)?;
            } else {
                return Ok(());
            }
        }
    }

    fn product(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        self.signed(t)?;
        loop {
            let step = if t.eat("*") {
                Step::Multiply
            } else if t.eat("/") {
                Step::Divide
            } else if t.eat("%") {
                Step::Remainder(self.dialect)
            } else {
                return Ok(());
            };
            self.signed(t)?;
            self.push(step)?;
        }
    }

    fn signed(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(t.pos().error("this expression is nested too deep"));
        }
        if t.eat("-") {
            self.signed(t)?;
            self.push(Step::Negate)?;
        } else if t.eat("+") || t.eat("++") {
            self.signed(t)?;
        } else {
            self.power(t)?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn power(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        self.atom(t)?;
        if t.eat("**") || t.eat("^") {
            self.signed(t)?;
            self.push(Step::Power)?;
        }
        Ok(())
    }

    fn atom(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        let pos = t.pos();
        match t.next() {
            Token::Int(n) => self.push(Step::Number(n as f64)),
            Token::Real(n) => self.push(Step::Number(n)),
            Token::Mark("(") => {
                self.sum(t)?;
                t.expect(")")
            }
            Token::Word(name) if self.dialect == Dialect::Circuit && t.eat("(") => {
                let function = function(name).ok_or_else(|| {
                    pos.error(format!("the function '{}' is not known", crate::model::cut(name, 40)))
                })?;
                self.sum(t)?;
                t.expect(")")?;
                self.push(Step::Call(function))
            }
            Token::Word(name) => match self.scope.slots.iter().rposition(|own| own == name) {
                Some(slot) => self.push(Step::Slot(slot)),
                None => {
                    let named = self.scope.constants.and_then(|all| all.get(name).copied());
                    let named = named.or_else(|| constant(name, self.dialect)).ok_or_else(|| {
                        pos.error(format!("the name '{}' has no value here", crate::model::cut(name, 40)))
                    });
                    self.push(Step::Number(named?))
                }
            },
            other => Err(pos.error(format!("expected a value, found {}", other.shown()))),
        }
    }
}

fn constant(name: &str, dialect: Dialect) -> Option<f64> {
    let name = match dialect {
        Dialect::Circuit => name.to_string(),
        Dialect::Statement => name.to_ascii_lowercase(),
    };
    Some(match name.as_str() {
        "pi" | "π" => PI,
        "tau" => TAU,
        "e" => E,
        "τ" if dialect == Dialect::Circuit => TAU,
        "euler" if dialect == Dialect::Circuit => E,
        _ => return None,
    })
}

fn function(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tan" => f64::tan,
        "arcsin" | "asin" => f64::asin,
        "arccos" | "acos" => f64::acos,
        "arctan" | "atan" => f64::atan,
        "exp" => f64::exp,
        "ln" | "log" => f64::ln,
        "sqrt" => f64::sqrt,
        "floor" => f64::floor,
        "ceiling" => f64::ceil,
        // Conversions: what is constant has a value already.
        "float" | "angle" => |x| x,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circuit(text: &str) -> Result<f64, CircuitError> {
        let tokens = tokens(text)?;
        let mut t = Tokens::new(&tokens);
        let value = expression(&mut t, Scope::default())?.value(&[], &mut ExpansionBudget::default())?;
        match t.peek() {
            Token::End => Ok(value),
            other => Err(t.pos().error(format!("found {}", other.shown()))),
        }
    }

    #[test]
    fn values_that_both_dialects_share() {
        let cases = [
            ("pi/4", PI / 4.0),
            ("-pi", -PI),
            ("2*pi/3 - 1", 2.0 * PI / 3.0 - 1.0),
            ("2**3/10", 0.8),
            ("-2**2/5", -0.8),
            ("2**-1", 0.5),
            ("2**1**2", 2.0),
            ("2^3^0", 2.0),
            ("7%4", 3.0),
            ("+tau/5", TAU / 5.0),
            ("1.5e-1", 0.15),
            ("e/3", E / 3.0),
            ("2*(1+.5)", 3.0),
            ("1e2", 100.0),
            ("--1", 1.0),
            ("++1", 1.0),
            ("1 ++ 1", 2.0),
            ("1e0+100000000000000000000", 1e20),
        ];
        for (text, value) in cases {
            let found = circuit(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert!((found - value).abs() <= value.abs() * 1e-15, "{text}: {found}");
            assert_eq!(statement_parameters(text), Ok(vec![found]), "{text}");
        }
    }

    #[test]
    fn variables_are_read_from_the_frame_and_constants_are_numbers_at_once() {
        let tokens = tokens("2*pi*i - -x**2 + sin(i)*(1+1+1)").unwrap();
        let slots = ["i".to_string(), "x".to_string()];
        let scope = Scope { slots: &slots, constants: None };
        let read = expression(&mut Tokens::new(&tokens), scope).unwrap();
        assert_eq!(read.steps.len(), 13, "{read:?}");
        let mut budget = ExpansionBudget::default();
        for (i, x) in [(0.0, 1.5), (0.3, -2.0)] {
            let expected = TAU * i + f64::powi(x, 2) + f64::sin(i) * 3.0;
            assert_eq!(read.value(&[i, x], &mut budget), Ok(expected));
        }
    }

    #[test]
    fn where_the_dialects_differ() {
        assert_eq!(circuit("-7%4"), Ok(-3.0));
        assert_eq!(statement_parameters("-7%4"), Ok(vec![1.0]));
        assert_eq!(circuit("cos(0) + 0*euler"), Ok(1.0));
        for text in ["cos(0)", "euler", "τ"] {
            assert!(statement_parameters(text).is_err() && circuit(text).is_ok(), "{text}");
        }
        assert_eq!(statement_parameters("PI"), Ok(vec![PI]));
        assert!(circuit("PI").is_err());
    }

    #[test]
    fn what_is_not_an_expression_or_has_no_finite_value_is_refused() {
        for text in [
            "1/0",
            "sin",
            "1 2",
            "1+",
            "(1",
            "1)",
            "1e",
            "nan",
            "10**400",
            "0%0",
            "(-1)**0.5",
            "1/(1/0)",
            "1,",
            ",1",
            "1;",
        ] {
            assert!(circuit(text).is_err(), "{text}");
            assert!(statement_parameters(text).is_err(), "{text}");
        }
        assert!(circuit("").is_err());
        for text in ["(".repeat(10_000), "-".repeat(10_000)] {
            assert!(statement_parameters(&text).is_err());
        }
    }

    #[test]
    fn parameters_are_separated_by_commas() {
        assert_eq!(statement_parameters(""), Ok(Vec::new()));
        assert_eq!(statement_parameters(" 0.1, (1+1),3"), Ok(vec![0.1, 2.0, 3.0]));
    }
}
