//! Pure: the statements of a source, expanded to primitive gates.

use std::collections::HashMap;
use std::rc::Rc;

use super::expand::{Call, Definition, Expander, Modifier, modifiers, params};
use super::expression::{Scopes, Tokens, expression, whole_number};
use super::gates::DEFINITIONS;
use super::lexer::{SourcePos, Token, tokens};
use super::{Circuit, CircuitError, CircuitOperation, MAX_OPERATIONS, MAX_QUBITS};

/// Longest classical register.
const MAX_BITS: u32 = 4096;

struct Parser<'a> {
    expander: Expander<'a>,
    version: u32,
    qubits: HashMap<String, (u32, u32)>,
    bits: HashMap<String, u32>,
    circuit: Circuit,
}

/// Reads a source.
///
/// # Errors
/// When the source is not valid or uses what peers can't run. The error has the position.
pub fn parse(source: &str) -> Result<Circuit, CircuitError> {
    let own = tokens(source)?;
    let built_in = tokens(DEFINITIONS)?;
    let mut parser = Parser {
        expander: Expander::new([&own, &built_in]),
        version: 3,
        qubits: HashMap::new(),
        bits: HashMap::new(),
        circuit: Circuit::default(),
    };
    let mut prelude = Tokens::new(&built_in);
    while *prelude.peek() != Token::End {
        prelude.next();
        parser.definition(&mut prelude, 1)?;
    }
    let mut t = Tokens::new(&own);
    parser.version_line(&mut t)?;
    while *t.peek() != Token::End {
        parser.statement(&mut t)?;
    }
    if parser.circuit.qubits == 0 {
        return Err(t.pos().error("the circuit has no qubits"));
    }
    if parser.circuit.operations.is_empty() {
        return Err(t.pos().error("the circuit has no operations"));
    }
    Ok(parser.circuit)
}

impl Parser<'_> {
    fn version_line(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        if !matches!(t.peek(), Token::Word(w) if w == "OPENQASM") {
            return Ok(());
        }
        t.next();
        let pos = t.pos();
        let version = match t.next() {
            Token::Int(n) => *n as f64,
            Token::Real(n) => *n,
            other => return Err(pos.error(format!("expected a version, found {}", other.shown()))),
        };
        self.version = match version {
            2.0 => 2,
            3.0..4.0 => 3,
            other => return Err(pos.error(format!("OpenQASM {other} is not known; 2.0 and 3.x are"))),
        };
        t.expect(";")
    }

    fn statement(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        let pos = t.pos();
        let Token::Word(word) = t.peek() else {
            return Err(pos.error(format!("expected a statement, found {}", t.peek().shown())));
        };
        match word.as_str() {
            "include" => {
                t.next();
                self.include(t, pos)
            }
            "qreg" | "creg" => {
                t.next();
                let name_pos = t.pos();
                let name = t.word("a name")?;
                t.expect("[")?;
                let size = self.size(t, word == "qreg")?;
                t.expect("]")?;
                t.expect(";")?;
                self.declare(name_pos, name, size, word == "qreg")
            }
            "qubit" | "bit" => {
                t.next();
                self.declaration(t, word == "qubit")
            }
            "const" => {
                t.next();
                self.constant(t)
            }
            "gate" => {
                t.next();
                self.definition(t, 0)
            }
            "barrier" => {
                t.next();
                // Stages come from dependencies; a barrier orders nothing that they don't.
                if !matches!(t.peek(), Token::Mark(";")) {
                    self.operands(t)?;
                }
                t.expect(";")
            }
            "measure" => {
                t.next();
                let qubits = self.operand(t)?;
                if t.eat("->") {
                    self.bit_operand(t, Some(qubits.len()))?;
                }
                t.expect(";")?;
                self.measure(pos, &qubits)
            }
            "if" | "else" | "for" | "while" | "switch" | "return" | "break" | "continue" | "end" => {
                Err(pos
                    .error(format!("'{word}' needs answers in the middle of a run, which peers don't give")))
            }
            "reset" => Err(pos.error("'reset' collapses a state, which peers don't do")),
            "opaque" | "defcal" | "defcalgrammar" | "cal" | "extern" | "def" | "input" | "output" | "let"
            | "delay" | "box" | "stretch" | "duration" | "array" | "pragma" | "annotation" | "int"
            | "uint" | "float" | "angle" | "bool" | "complex" => {
                Err(pos.error(format!("'{word}' is not taken here: gates, registers and measurements are")))
            }
            _ if self.bits.contains_key(word) && matches!(t.peek_second(), Token::Mark("=" | "[")) => {
                self.assignment(t)
            }
            _ => self.application(t),
        }
    }

    /// Only the two standard names, which are built in.
    fn include(&mut self, t: &mut Tokens<'_>, pos: SourcePos) -> Result<(), CircuitError> {
        match t.next() {
            Token::Text(name) if name == "qelib1.inc" || name == "stdgates.inc" => t.expect(";"),
            Token::Text(_) => {
                Err(pos.error("only \"qelib1.inc\" and \"stdgates.inc\" can be included; no file is read"))
            }
            other => Err(pos.error(format!("expected a file name in quotes, found {}", other.shown()))),
        }
    }

    fn size(&mut self, t: &mut Tokens<'_>, quantum: bool) -> Result<u32, CircuitError> {
        let pos = t.pos();
        let max = if quantum { MAX_QUBITS } else { MAX_BITS };
        match whole_number(t, Scopes::of_constants(&self.expander.constants), "the size", max)? {
            0 => Err(pos.error("a register has at least one element")),
            n => Ok(n),
        }
    }

    fn declare(&mut self, pos: SourcePos, name: &str, size: u32, quantum: bool) -> Result<(), CircuitError> {
        if self.qubits.contains_key(name)
            || self.bits.contains_key(name)
            || self.expander.constants.contains_key(name)
        {
            return Err(pos.error(format!("'{name}' is declared already")));
        }
        if !quantum {
            if self.bits.len() >= 1024 {
                return Err(pos.error("more than 1024 classical registers"));
            }
            self.bits.insert(name.into(), size);
            return Ok(());
        }
        let first = self.circuit.qubits;
        if first + size > MAX_QUBITS {
            return Err(pos.error(format!("with '{name}' the circuit has more than {MAX_QUBITS} qubits")));
        }
        self.circuit.qubits += size;
        self.qubits.insert(name.into(), (first, size));
        Ok(())
    }

    /// `qubit[n] name;`, `bit[n] name;`, `bit[n] name = measure q;`
    fn declaration(&mut self, t: &mut Tokens<'_>, quantum: bool) -> Result<(), CircuitError> {
        let size = match t.eat("[") {
            true => {
                let size = self.size(t, quantum)?;
                t.expect("]")?;
                size
            }
            false => 1,
        };
        let pos = t.pos();
        let name = t.word("a name")?;
        self.declare(pos, name, size, quantum)?;
        if !quantum && t.eat("=") {
            self.measured_value(t, size as usize)?;
        }
        t.expect(";")
    }

    fn constant(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        let pos = t.pos();
        let kind = t.word("a type")?;
        if !matches!(kind, "int" | "uint" | "float" | "angle") {
            return Err(pos.error(format!("constants of type '{kind}' are not taken here")));
        }
        if t.eat("[") {
            whole_number(t, Scopes::of_constants(&self.expander.constants), "the width", 64)?;
            t.expect("]")?;
        }
        let pos = t.pos();
        let name = t.word("a name")?;
        t.expect("=")?;
        let is = expression(t, Scopes::of_constants(&self.expander.constants))?;
        t.expect(";")?;
        if self.qubits.contains_key(name)
            || self.bits.contains_key(name)
            || self.expander.constants.len() >= 1024
        {
            return Err(pos.error(format!("'{name}' is declared already, or there are too many constants")));
        }
        match self.expander.constants.insert(name.into(), is) {
            None => Ok(()),
            Some(_) => Err(pos.error(format!("'{name}' is declared already"))),
        }
    }

    /// A gate's definition; its body is looked at when it is used.
    fn definition(&mut self, t: &mut Tokens<'_>, source: usize) -> Result<(), CircuitError> {
        let pos = t.pos();
        let name = t.word("a name")?;
        let mut params = Vec::new();
        if t.eat("(") {
            params = name_list(t, ")")?;
            t.expect(")")?;
        }
        let qubits = name_list(t, "{")?;
        if qubits.is_empty() {
            return Err(t.pos().error("a gate has at least one qubit"));
        }
        t.expect("{")?;
        let body = t.at();
        let mut depth = 1;
        while depth > 0 {
            let pos = t.pos();
            match t.next() {
                Token::Mark("{") => depth += 1,
                Token::Mark("}") => depth -= 1,
                Token::End => return Err(pos.error(format!("the gate '{name}' has no closing '}}'"))),
                _ => {}
            }
        }
        let definition = Rc::new(Definition { params, qubits, source, body });
        let twice = self.expander.gates.insert(name.into(), definition).is_some_and(|d| d.source == 0);
        match twice {
            true => Err(pos.error(format!("the gate '{name}' is defined twice"))),
            false => Ok(()),
        }
    }

    /// `name[index] = measure ...;`
    fn assignment(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        let size = self.bit_operand(t, None)?;
        t.expect("=")?;
        self.measured_value(t, size)?;
        t.expect(";")
    }

    fn measured_value(&mut self, t: &mut Tokens<'_>, size: usize) -> Result<(), CircuitError> {
        let pos = t.pos();
        if t.word("'measure'")? != "measure" {
            return Err(pos.error("only a measurement can be assigned to bits"));
        }
        let qubits = self.operand(t)?;
        if qubits.len() != size {
            return Err(pos.error(format!("{} qubits are measured into {size} bits", qubits.len())));
        }
        self.measure(pos, &qubits)
    }

    /// Bits that a measurement goes to; where they lie is not kept, since counts follow the measured qubits.
    fn bit_operand(&mut self, t: &mut Tokens<'_>, needed: Option<usize>) -> Result<usize, CircuitError> {
        let pos = t.pos();
        let name = t.word("a classical register")?;
        let size = *self
            .bits
            .get(name)
            .ok_or_else(|| pos.error(format!("there is no classical register '{name}'")))?;
        let mut count = size as usize;
        if t.eat("[") {
            let at = t.pos();
            let index =
                whole_number(t, Scopes::of_constants(&self.expander.constants), "the index", MAX_BITS)?;
            t.expect("]")?;
            if index >= size {
                return Err(at.error(format!("'{name}' has {size} bits, there is no {index}")));
            }
            count = 1;
        }
        match needed {
            Some(needed) if needed != count => {
                Err(pos.error(format!("{needed} qubits are measured into {count} bits")))
            }
            _ => Ok(count),
        }
    }

    fn measure(&mut self, pos: SourcePos, qubits: &[u32]) -> Result<(), CircuitError> {
        for &qubit in qubits {
            if self.circuit.measured.contains(&qubit) {
                return Err(pos.error(format!("qubit {qubit} is measured twice")));
            }
            self.circuit.measured.push(qubit);
            let raw_text = format!("measure q[{qubit}];");
            self.push(
                pos,
                CircuitOperation { service: "measurement_feedforward", qubits: vec![qubit], raw_text },
            )?;
        }
        Ok(())
    }

    fn push(&mut self, pos: SourcePos, operation: CircuitOperation) -> Result<(), CircuitError> {
        if self.circuit.operations.len() >= MAX_OPERATIONS {
            return Err(pos.error(format!("the circuit has more than {MAX_OPERATIONS} operations")));
        }
        self.circuit.operations.push(operation);
        Ok(())
    }

    /// One qubit, or all of a register.
    fn operand(&mut self, t: &mut Tokens<'_>) -> Result<Vec<u32>, CircuitError> {
        let pos = t.pos();
        let name = t.word("a qubit or a register")?;
        let &(first, size) = self
            .qubits
            .get(name)
            .ok_or_else(|| pos.error(format!("there is no quantum register '{name}'")))?;
        if !t.eat("[") {
            return Ok((first..first + size).collect());
        }
        let at = t.pos();
        let index = whole_number(t, Scopes::of_constants(&self.expander.constants), "the index", MAX_BITS)?;
        if t.eat(":") || t.eat(",") {
            return Err(at.error("ranges of qubits are not taken here: name them one by one"));
        }
        t.expect("]")?;
        match index < size {
            true => Ok(vec![first + index]),
            false => Err(at.error(format!("'{name}' has {size} qubits, there is no {index}"))),
        }
    }

    fn operands(&mut self, t: &mut Tokens<'_>) -> Result<Vec<Vec<u32>>, CircuitError> {
        let mut all = vec![self.operand(t)?];
        while t.eat(",") {
            all.push(self.operand(t)?);
        }
        Ok(all)
    }

    /// A gate on qubits, once or for each element of the registers.
    fn application(&mut self, t: &mut Tokens<'_>) -> Result<(), CircuitError> {
        let modifiers = modifiers(t, &self.expander.constants)?;
        let pos = t.pos();
        let name = t.word("a gate")?;
        let params =
            if t.eat("(") { params(t, Scopes::of_constants(&self.expander.constants))? } else { Vec::new() };
        if name == "gphase" {
            // A phase of the whole state; it shows only under a control, which would make it a gate.
            let free = !modifiers.iter().any(|m| matches!(m, Modifier::Control | Modifier::NegativeControl));
            return match free && params.len() == 1 && t.eat(";") {
                true => Ok(()),
                false => Err(pos.error("a controlled gphase is not taken here: use p")),
            };
        }
        let operands = self.operands(t)?;
        t.expect(";")?;
        let length = operands.iter().map(Vec::len).max().unwrap_or(0);
        if operands.iter().any(|o| o.len() != 1 && o.len() != length) {
            return Err(pos.error("registers of different sizes can't be used together"));
        }
        for n in 0..length {
            let qubits: Vec<u32> = operands.iter().map(|o| if o.len() == 1 { o[0] } else { o[n] }).collect();
            let call = Call { name, pos, modifiers: &modifiers, params: &params };
            let mut gates = Vec::new();
            self.expander.expand(&call, &qubits, 0, &mut gates)?;
            for gate in gates {
                if let Some(measured) = gate.qubits.iter().find(|q| self.circuit.measured.contains(q)) {
                    return Err(pos.error(format!("qubit {measured} was measured before this gate")));
                }
                self.push(pos, gate.operation())?;
            }
        }
        Ok(())
    }
}

fn name_list(t: &mut Tokens<'_>, end: &str) -> Result<Vec<String>, CircuitError> {
    let mut found: Vec<String> = Vec::new();
    while !matches!(t.peek(), Token::Mark(m) if *m == end) {
        let pos = t.pos();
        let name = t.word("a name")?;
        if found.iter().any(|n| n == name) || found.len() >= 64 {
            return Err(pos.error(format!("'{name}' is named twice, or there are too many names")));
        }
        found.push(name.into());
        if !t.eat(",") {
            break;
        }
    }
    Ok(found)
}
