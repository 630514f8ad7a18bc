//! Pure: how operands are read: registers and parts of them, qubits of the hardware and of gates; ranges, sets and lists.

use super::CircuitError;
use super::declarations::Elements;
use super::expression::Expression;
use super::lexer::{SourcePos, Token};
use super::parser::Parser;
use super::program::{Index, Operand, Range};
use crate::model::cut;

/// Most members of a list: operands, a set.
const MAX_LIST: usize = 1024;
/// Most indexes behind one name.
const MAX_INDEXES: usize = 8;

impl Parser<'_> {
    /// `first:last` or `first:step:last`, each of which may be left out. The first may be read already.
    pub(super) fn range(&mut self, first: Option<Expression>) -> Result<Range, CircuitError> {
        let pos = first.as_ref().map_or_else(|| self.t.pos(), Expression::pos);
        let first = match first {
            Some(first) => Some(first),
            None => self.range_end()?,
        };
        self.t.expect(":")?;
        let second = self.range_end()?;
        if !self.t.eat(":") {
            return Ok(Range { pos, first, step: None, last: second });
        }
        let last = self.range_end()?;
        Ok(Range { pos, first, step: second, last })
    }

    fn range_end(&mut self) -> Result<Option<Expression>, CircuitError> {
        match self.t.is_at(":") || self.t.is_at("]") {
            true => Ok(None),
            false => self.expression().map(Some),
        }
    }

    /// Members behind an opening brace, up to the closing one.
    pub(super) fn set(&mut self) -> Result<Vec<Expression>, CircuitError> {
        self.list("}", MAX_LIST)
    }

    /// Expressions that are separated by commas, up to the closing mark.
    pub(super) fn list(&mut self, end: &str, most: usize) -> Result<Vec<Expression>, CircuitError> {
        let mut found = Vec::new();
        while !self.t.eat(end) {
            if !found.is_empty() {
                self.t.expect(",")?;
            }
            if found.len() >= most {
                return Err(self.t.pos().error(format!("more than {most} values")));
            }
            found.push(self.expression()?);
        }
        Ok(found)
    }

    pub(super) fn operands(&mut self) -> Result<Vec<Operand>, CircuitError> {
        let mut all = vec![self.operand()?];
        while self.t.eat(",") {
            if all.len() >= MAX_LIST {
                return Err(self.t.pos().error(format!("more than {MAX_LIST} operands")));
            }
            all.push(self.operand()?);
        }
        Ok(all)
    }

    /// Qubits: a register, an alias, a part of one, a qubit of the hardware, or in a gate one of its qubits.
    pub(super) fn operand(&mut self) -> Result<Operand, CircuitError> {
        let pos = self.t.pos();
        if let Some(own) = &self.gate {
            let name = self.t.word("a qubit of the gate")?;
            return own
                .iter()
                .position(|qubit| qubit == name)
                .map(Operand::OfGate)
                .ok_or_else(|| pos.error(format!("'{}' is not a qubit of the gate", cut(name, 40))));
        }
        if let Token::Physical(number) = self.t.peek() {
            self.t.next();
            let elements = self.declarations.physical(pos, number)?;
            return Ok(Operand::Elements { pos, name: "$".into(), elements, indexes: Vec::new() });
        }
        let name = self.t.word("a qubit or a register")?;
        let elements = self
            .declarations
            .qubits(name)
            .ok_or_else(|| pos.error(format!("there is no quantum register '{}'", cut(name, 40))))?;
        self.indexed(pos, name, elements)
    }

    pub(super) fn bit_operand(&mut self) -> Result<Operand, CircuitError> {
        let pos = self.t.pos();
        let name = self.t.word("a classical register")?;
        let elements = self
            .declarations
            .bits(name)
            .ok_or_else(|| pos.error(format!("there is no classical register '{}'", cut(name, 40))))?;
        self.indexed(pos, name, elements)
    }

    /// The indexes behind a name.
    fn indexed(&mut self, pos: SourcePos, name: &str, elements: Elements) -> Result<Operand, CircuitError> {
        let mut indexes = Vec::new();
        while self.t.eat("[") {
            let index_pos = self.t.pos();
            let index = match self.t.eat("{") {
                true => Index::Set { pos: index_pos, members: self.set()? },
                false => match self.range_end()? {
                    Some(first) if !self.t.is_at(":") => Index::One(first),
                    first => Index::Range(self.range(first)?),
                },
            };
            self.t.expect("]")?;
            indexes.push(index);
            if indexes.len() > MAX_INDEXES {
                return Err(index_pos.error(format!("more than {MAX_INDEXES} indexes behind one name")));
            }
        }
        Ok(Operand::Elements { pos, name: cut(name, 40).into(), elements, indexes })
    }
}
