//! Pure: constant expressions: numbers, names, `pi tau euler`, functions, `+ - * / % ** ^`, brackets.
//!
//! A power binds more than a sign in front of it and takes its right side first. There is one evaluator for circuits and
//! for the statements that peers exchange; where the two differ is said by [`Dialect`].

use std::collections::HashMap;
use std::f64::consts::{E, PI, TAU};

use super::CircuitError;
use super::lexer::{SourcePos, Token, tokens};

const MAX_DEPTH: u32 = 64;

/// A run of tokens that is read once.
pub struct Tokens<'a> {
    tokens: &'a [(Token, SourcePos)],
    at: usize,
}

impl<'a> Tokens<'a> {
    /// `tokens` ends with [`Token::End`].
    pub fn new(tokens: &'a [(Token, SourcePos)]) -> Tokens<'a> {
        Tokens { tokens, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    pub fn peek(&self) -> &'a Token {
        self.tokens.get(self.at).map_or(&Token::End, |(t, _)| t)
    }

    pub fn peek_second(&self) -> &'a Token {
        self.tokens.get(self.at + 1).map_or(&Token::End, |(t, _)| t)
    }

    pub fn pos(&self) -> SourcePos {
        let last = self.tokens.last().map_or(SourcePos { line: 1, column: 1 }, |(_, p)| *p);
        self.tokens.get(self.at).map_or(last, |(_, p)| *p)
    }

    pub fn next(&mut self) -> &'a Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub fn eat(&mut self, mark: &str) -> bool {
        let found = matches!(self.peek(), Token::Mark(m) if *m == mark);
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

/// Values of names: a gate's parameters, then the constants. Nothing is copied, because a gate may be expanded very often.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scopes<'a> {
    names: &'a [String],
    values: &'a [f64],
    constants: Option<&'a HashMap<String, f64>>,
}

impl<'a> Scopes<'a> {
    /// Outside of gates.
    pub fn of_constants(constants: &'a HashMap<String, f64>) -> Scopes<'a> {
        Scopes { names: &[], values: &[], constants: Some(constants) }
    }

    /// In the body of a gate, whose parameters have these names and values.
    pub fn of_gate(
        names: &'a [String],
        values: &'a [f64],
        constants: &'a HashMap<String, f64>,
    ) -> Scopes<'a> {
        Scopes { names, values, constants: Some(constants) }
    }

    fn value(&self, name: &str) -> Option<f64> {
        let own = self.names.iter().position(|own| own == name).and_then(|at| self.values.get(at));
        own.or_else(|| self.constants?.get(name)).copied()
    }
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

/// Reads one expression of a circuit.
///
/// # Errors
/// When the tokens are not an expression, or it has no finite value.
pub fn expression(tokens: &mut Tokens<'_>, names: Scopes<'_>) -> Result<f64, CircuitError> {
    evaluate(tokens, names, Dialect::Circuit)
}

/// Reads the parameters of a statement: expressions that are separated by commas.
///
/// # Errors
/// When the text is anything else, or a value is not finite.
pub fn statement_parameters(text: &str) -> Result<Vec<f64>, CircuitError> {
    let tokens = tokens(text)?;
    let mut t = Tokens::new(&tokens);
    let mut values = Vec::new();
    if *t.peek() == Token::End {
        return Ok(values);
    }
    loop {
        values.push(evaluate(&mut t, Scopes::default(), Dialect::Statement)?);
        match t.next() {
            Token::End => return Ok(values),
            Token::Mark(",") => {}
            other => return Err(t.pos().error(format!("expected ',' or the end, found {}", other.shown()))),
        }
    }
}

fn evaluate(t: &mut Tokens<'_>, names: Scopes<'_>, dialect: Dialect) -> Result<f64, CircuitError> {
    let pos = t.pos();
    let value = Evaluator { names, dialect, depth: 0 }.sum(t)?;
    finite(value, pos)
}

fn finite(value: f64, pos: SourcePos) -> Result<f64, CircuitError> {
    match value.is_finite() {
        true => Ok(value),
        false => Err(pos.error("this expression has no finite value")),
    }
}

/// Reads a whole number within bounds.
///
/// # Errors
/// When the tokens are not an expression, or its value is not a whole number within the bounds.
pub fn whole_number(
    tokens: &mut Tokens<'_>,
    names: Scopes<'_>,
    what: &str,
    max: u32,
) -> Result<u32, CircuitError> {
    let pos = tokens.pos();
    let n = expression(tokens, names)?;
    match n.fract() == 0.0 && (0.0..=f64::from(max)).contains(&n) {
        // In range by the line before.
        true => Ok(n as u32),
        false => Err(pos.error(format!("{what} is {n}, a whole number from 0 to {max} is needed"))),
    }
}

struct Evaluator<'n> {
    names: Scopes<'n>,
    dialect: Dialect,
    depth: u32,
}

impl Evaluator<'_> {
    fn sum(&mut self, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        let mut value = self.product(t)?;
        loop {
            // `1 ++ 1` adds a positive number; the lexer reads the two signs as one mark.
            if t.eat("+") || t.eat("++") {
                value += self.product(t)?;
            } else if t.eat("-") {
                value -= self.product(t)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        let pos = t.pos();
        let mut value = self.signed(t)?;
        loop {
            if t.eat("*") {
                value *= self.signed(t)?;
            } else if t.eat("/") {
                value /= self.signed(t)?;
            } else if t.eat("%") {
                value = self.remainder(value, self.dialect, t)?;
            } else {
                return Ok(value);
            }
            // An infinity would vanish under a later division.
            value = finite(value, pos)?;
        }
    }

    fn remainder(&mut self, left: f64, dialect: Dialect, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        let right = self.signed(t)?;
        Ok(match dialect {
            Dialect::Circuit => left % right,
            Dialect::Statement => left - right * (left / right).floor(),
        })
    }

    fn signed(&mut self, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(t.pos().error("this expression is nested too deep"));
        }
        let value = if t.eat("-") {
            -self.signed(t)?
        } else if t.eat("+") || t.eat("++") {
            self.signed(t)?
        } else {
            self.power(t)?
        };
        self.depth -= 1;
        Ok(value)
    }

    fn power(&mut self, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        let pos = t.pos();
        let base = self.atom(t)?;
        match t.eat("**") || t.eat("^") {
            true => finite(base.powf(self.signed(t)?), pos),
            false => Ok(base),
        }
    }

    fn atom(&mut self, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        let pos = t.pos();
        match t.next() {
            Token::Int(n) => Ok(*n as f64),
            Token::Real(n) => Ok(*n),
            Token::Mark("(") => {
                let value = self.sum(t)?;
                t.expect(")")?;
                Ok(value)
            }
            Token::Word(name) if self.dialect == Dialect::Circuit && t.eat("(") => {
                let value = self.sum(t)?;
                t.expect(")")?;
                function(name, value).ok_or_else(|| pos.error(format!("the function '{name}' is not known")))
            }
            Token::Word(name) => {
                let named = self.names.value(name);
                named.or_else(|| constant(name, self.dialect)).ok_or_else(|| {
                    pos.error(format!("the name '{}' has no value here", crate::model::cut(name, 40)))
                })
            }
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

fn function(name: &str, x: f64) -> Option<f64> {
    Some(match name {
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        "arcsin" | "asin" => x.asin(),
        "arccos" | "acos" => x.acos(),
        "arctan" | "atan" => x.atan(),
        "exp" => x.exp(),
        "ln" | "log" => x.ln(),
        "sqrt" => x.sqrt(),
        "floor" => x.floor(),
        "ceiling" => x.ceil(),
        // Conversions: what is constant has a value already.
        "float" | "angle" => x,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circuit(text: &str) -> Result<f64, CircuitError> {
        let tokens = tokens(text)?;
        let mut t = Tokens::new(&tokens);
        let value = expression(&mut t, Scopes::default())?;
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
