//! Pure: constant expressions: numbers, names, `pi tau euler`, functions, `+ - * / % ** ^`, brackets.

use std::collections::HashMap;
use std::f64::consts::{E, PI, TAU};

use super::CircuitError;
use super::lexer::{SourcePos, Token};

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

/// Values of names, the innermost first.
pub type Scopes<'a> = [&'a HashMap<String, f64>];

/// Reads one expression.
///
/// # Errors
/// What is wrong with it, or that it has no finite value.
pub fn expression(tokens: &mut Tokens<'_>, names: &Scopes<'_>) -> Result<f64, CircuitError> {
    let pos = tokens.pos();
    let value = Evaluator { names, depth: 0 }.sum(tokens)?;
    match value.is_finite() {
        true => Ok(value),
        false => Err(pos.error("this expression has no finite value")),
    }
}

/// Reads a whole number within bounds.
///
/// # Errors
/// When it is none.
pub fn whole_number(
    tokens: &mut Tokens<'_>,
    names: &Scopes<'_>,
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
    names: &'n Scopes<'n>,
    depth: u32,
}

impl Evaluator<'_> {
    fn sum(&mut self, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        let mut value = self.product(t)?;
        loop {
            if t.eat("+") {
                value += self.product(t)?;
            } else if t.eat("-") {
                value -= self.product(t)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        let mut value = self.signed(t)?;
        loop {
            if t.eat("*") {
                value *= self.signed(t)?;
            } else if t.eat("/") {
                value /= self.signed(t)?;
            } else if t.eat("%") {
                value %= self.signed(t)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self, t: &mut Tokens<'_>) -> Result<f64, CircuitError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(t.pos().error("this expression is nested too deep"));
        }
        let value = if t.eat("-") {
            -self.signed(t)?
        } else if t.eat("+") {
            self.signed(t)?
        } else {
            let base = self.atom(t)?;
            match t.eat("**") || t.eat("^") {
                true => base.powf(self.signed(t)?),
                false => base,
            }
        };
        self.depth -= 1;
        Ok(value)
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
            Token::Word(name) if t.eat("(") => {
                let value = self.sum(t)?;
                t.expect(")")?;
                function(name, value).ok_or_else(|| pos.error(format!("the function '{name}' is not known")))
            }
            Token::Word(name) => {
                let named = self.names.iter().find_map(|n| n.get(name).copied());
                named.or_else(|| constant(name)).ok_or_else(|| {
                    pos.error(format!("the name '{}' has no value here", crate::model::cut(name, 40)))
                })
            }
            other => Err(pos.error(format!("expected a value, found {}", other.shown()))),
        }
    }
}

fn constant(name: &str) -> Option<f64> {
    Some(match name {
        "pi" | "π" => PI,
        "tau" | "τ" => TAU,
        "euler" | "e" => E,
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
