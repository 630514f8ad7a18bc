//! Pure: the statements of a source. Declarations take effect at once; others are run by `circuit`, those of loops and
//! gates as often as they are expanded.

use std::collections::BTreeMap;

use super::circuit::Builder;
use super::declarations::{Declarations, InputType, MAX_BITS};
use super::expression::{Expression, Tokens, expression};
use super::gates::{DEFINITIONS, IQFT, QFT, named_gate};
use super::lexer::{SourcePos, Token, tokens};
use super::program::{Application, Callee, Definition, Form, Loop, LoopValues, Modifier, Operand, Statement};
use super::{Circuit, CircuitError, MAX_QUBITS};
use crate::model::cut;

/// Most modifiers of one gate.
const MAX_MODIFIERS: usize = 64;
/// Deepest nesting of loops.
const MAX_LOOPS: usize = 40;
/// Built-in gates whose power is that of their angle.
const ROTATIONS: [&str; 3] = ["rxx", "ryy", "rzz"];

/// The reader of a source.
pub(super) struct Parser<'a> {
    pub(super) t: Tokens<'a>,
    pub(super) declarations: Declarations,
    builder: Builder,
    inputs: &'a BTreeMap<String, f64>,
    /// The source's text is read, and not the prelude.
    is_own: bool,
    /// Names of the frame's values: parameters of a gate, then variables of loops.
    slots: Vec<String>,
    /// The qubits of the gate whose body is read.
    pub(super) gate: Option<Vec<String>>,
    loops: usize,
}

/// Reads a source.
pub(super) fn parse(source: &str, inputs: &BTreeMap<String, f64>) -> Result<Circuit, CircuitError> {
    let (own, built_in) = (tokens(source)?, tokens(DEFINITIONS)?);
    let mut parser = Parser {
        t: Tokens::new(&built_in),
        declarations: Declarations::default(),
        builder: Builder::default(),
        inputs,
        is_own: false,
        slots: Vec::new(),
        gate: None,
        loops: 0,
    };
    parser.all()?;
    parser.is_own = true;
    parser.t = Tokens::new(&own);
    parser.version_line()?;
    parser.all()?;
    let end = parser.t.pos();
    let Parser { declarations, builder, .. } = parser;
    if declarations.qubit_count == 0 {
        return Err(end.error("the circuit has no qubits"));
    }
    if builder.is_empty() {
        return Err(end.error("the circuit has no operations"));
    }
    Ok(builder.finish(declarations.qubit_count, &declarations.bit_names, declarations.inputs))
}

impl<'a> Parser<'a> {
    fn all(&mut self) -> Result<(), CircuitError> {
        while self.t.peek() != Token::End {
            if let Some(statement) = self.statement()? {
                self.builder.run(&statement, &mut Vec::new())?;
            }
        }
        Ok(())
    }

    fn version_line(&mut self) -> Result<(), CircuitError> {
        if self.t.peek() != Token::Word("OPENQASM") {
            return Ok(());
        }
        self.t.next();
        let pos = self.t.pos();
        let version = match self.t.next() {
            Token::Int(n) => n as f64,
            Token::Real(n) => n,
            other => return Err(pos.error(format!("expected a version, found {}", other.shown()))),
        };
        match version {
            2.0 | 3.0..4.0 => self.t.expect(";"),
            other => Err(pos.error(format!("OpenQASM {other} is not known; 2.0 and 3.x are"))),
        }
    }

    /// One statement; nothing when it was a declaration.
    fn statement(&mut self) -> Result<Option<Statement>, CircuitError> {
        let pos = self.t.pos();
        let Token::Word(word) = self.t.peek() else {
            return Err(pos.error(format!("expected a statement, found {}", self.t.peek().shown())));
        };
        let is_inside = self.loops > 0 || self.gate.is_some();
        match word {
            "for" => return self.each().map(Some),
            "barrier" => {
                self.t.next();
                let qubits = if self.t.is_at(";") { Vec::new() } else { self.operands()? };
                self.t.expect(";")?;
                return Ok(self.gate.is_none().then_some(Statement::Barrier { pos, qubits }));
            }
            "measure" | "reset" if self.gate.is_some() => {
                return Err(pos.error(format!("'{word}' can't stand in a gate: only gates and loops can")));
            }
            "measure" => {
                self.t.next();
                let qubits = self.operand()?;
                let bits = if self.t.eat("->") { Some(self.bit_operand()?) } else { None };
                self.t.expect(";")?;
                return Ok(Some(Statement::Measure { pos, qubits, bits }));
            }
            "reset" => {
                self.t.next();
                let qubits = self.operand()?;
                self.t.expect(";")?;
                return Ok(Some(Statement::Reset { pos, qubits }));
            }
            "if" | "else" | "while" | "switch" => {
                return Err(pos.error(format!(
                    "'{word}' needs a measured value in the middle of a run: this coordinator measures at the end \
                     only; use a controlled gate (ctrl @) and measure behind it"
                )));
            }
            "break" | "continue" | "return" | "end" => {
                return Err(pos.error(format!("'{word}' is not taken here: loops run to their end")));
            }
            "include" | "qreg" | "creg" | "qubit" | "bit" | "const" | "input" | "let" | "gate"
                if is_inside =>
            {
                return Err(
                    pos.error(format!("'{word}' can't stand in a gate or loop: move it in front of it"))
                );
            }
            "int" | "uint" | "float" | "angle" | "bool" | "complex" => {
                return Err(pos
                    .error(format!("variables are not taken here: write 'const {word}' or 'input {word}'")));
            }
            "opaque" | "defcal" | "defcalgrammar" | "cal" | "extern" | "def" | "output" | "delay" | "box"
            | "stretch" | "duration" | "array" | "pragma" | "annotation" => {
                let text = "is not taken here: gates, registers, static loops and measurements are";
                return Err(pos.error(format!("'{word}' {text}")));
            }
            "include" => self.include()?,
            "qreg" | "creg" => self.old_register(word == "qreg")?,
            "qubit" => self.qubits()?,
            "bit" => return self.bits(),
            "const" => self.constant()?,
            "input" => self.input()?,
            "let" => self.alias()?,
            "gate" => self.definition()?,
            _ => return self.gate_or_assignment(word).map(Some),
        }
        Ok(None)
    }

    /// Only the two standard names, which are built in.
    fn include(&mut self) -> Result<(), CircuitError> {
        let pos = self.t.pos();
        self.t.next();
        match self.t.next() {
            Token::Text("qelib1.inc" | "stdgates.inc") => self.t.expect(";"),
            Token::Text(_) => {
                Err(pos.error("only \"qelib1.inc\" and \"stdgates.inc\" can be included; no file is read"))
            }
            other => Err(pos.error(format!("expected a file name in quotes, found {}", other.shown()))),
        }
    }

    pub(super) fn expression(&mut self) -> Result<Expression, CircuitError> {
        expression(&mut self.t, self.declarations.scope(&self.slots))
    }

    /// A whole number that is known at once.
    fn number(&mut self, what: &str, first: i64, last: u32) -> Result<u32, CircuitError> {
        let number = expression(&mut self.t, self.declarations.scope(&[]))?;
        let value = number.whole(&[], &mut self.builder.budget, what, first..=i64::from(last))?;
        Ok(u32::try_from(value).unwrap_or(last))
    }

    /// `[n]`, when there is one.
    fn size(&mut self, most: u32) -> Result<Option<u32>, CircuitError> {
        if !self.t.eat("[") {
            return Ok(None);
        }
        let size = self.number("the size", 1, most)?;
        self.t.expect("]")?;
        Ok(Some(size))
    }

    /// `qreg name[n];` and `creg name[n];`
    fn old_register(&mut self, is_quantum: bool) -> Result<(), CircuitError> {
        self.t.next();
        let pos = self.t.pos();
        let name = self.t.word("a name")?;
        if !self.t.is_at("[") {
            self.t.expect("[")?;
        }
        let size = self.size(if is_quantum { MAX_QUBITS } else { MAX_BITS })?;
        self.t.expect(";")?;
        match is_quantum {
            true => self.declarations.declare_qubits(pos, name, size.unwrap_or(1)),
            false => self.declarations.declare_bits(pos, name, size).map(drop),
        }
    }

    /// `qubit[n] name;`
    fn qubits(&mut self) -> Result<(), CircuitError> {
        self.t.next();
        let size = self.size(MAX_QUBITS)?.unwrap_or(1);
        let pos = self.t.pos();
        let name = self.t.word("a name")?;
        self.declarations.declare_qubits(pos, name, size)?;
        self.t.expect(";")
    }

    /// `bit[n] name;` and `bit[n] name = measure q;`
    fn bits(&mut self) -> Result<Option<Statement>, CircuitError> {
        self.t.next();
        let size = self.size(MAX_BITS)?;
        let pos = self.t.pos();
        let name = self.t.word("a name")?;
        let elements = self.declarations.declare_bits(pos, name, size)?;
        let mut statement = None;
        if self.t.eat("=") {
            let bits = Operand::Elements { pos, name: name.into(), elements, indexes: Vec::new() };
            statement = Some(self.measured_value(pos, bits)?);
        }
        self.t.expect(";")?;
        Ok(statement)
    }

    /// `measure q` behind an equals sign.
    fn measured_value(&mut self, pos: SourcePos, bits: Operand) -> Result<Statement, CircuitError> {
        let value_pos = self.t.pos();
        if self.t.next() != Token::Word("measure") {
            return Err(value_pos.error("only a 'measure' can be assigned to bits"));
        }
        Ok(Statement::Measure { pos, qubits: self.operand()?, bits: Some(bits) })
    }

    /// A type of numbers, and its width.
    fn number_type(&mut self, what: &str) -> Result<InputType, CircuitError> {
        let pos = self.t.pos();
        let kind = self.t.word("a type")?;
        if !matches!(kind, "int" | "uint" | "float" | "angle") {
            let kind = cut(kind, 40);
            return Err(pos.error(format!(
                "{what} of type '{kind}' are not taken here: int, uint, float and angle are"
            )));
        }
        let width = match self.t.eat("[") {
            true => {
                let width = self.number("the width", 1, 64)?;
                self.t.expect("]")?;
                width
            }
            false => 32,
        };
        Ok(match kind {
            "int" => InputType::Int(width),
            "uint" => InputType::Uint(width),
            _ => InputType::Real,
        })
    }

    fn constant(&mut self) -> Result<(), CircuitError> {
        self.t.next();
        let kind = self.number_type("constants")?;
        let pos = self.t.pos();
        let name = self.t.word("a name")?;
        self.t.expect("=")?;
        let value = self.expression()?.value(&[], &mut self.builder.budget)?;
        kind.check(value).map_err(|needed| {
            pos.error(format!("the constant '{}' is {value}, {needed} is needed", cut(name, 40)))
        })?;
        self.t.expect(";")?;
        self.declarations.declare_constant(pos, name, value)
    }

    fn input(&mut self) -> Result<(), CircuitError> {
        self.t.next();
        let kind = self.number_type("inputs")?;
        let pos = self.t.pos();
        let name = self.t.word("a name")?;
        self.t.expect(";")?;
        self.declarations.declare_input(pos, kind, name, self.inputs)
    }

    /// `let name = a[0:2] ++ b;`
    fn alias(&mut self) -> Result<(), CircuitError> {
        self.t.next();
        let pos = self.t.pos();
        let name = self.t.word("a name")?;
        self.t.expect("=")?;
        let mut qubits = Vec::new();
        loop {
            let operand = self.operand()?;
            qubits.extend(self.builder.elements(&operand, &[])?);
            if qubits.len() > MAX_QUBITS as usize {
                return Err(pos.error(format!("an alias of more than {MAX_QUBITS} qubits")));
            }
            if !self.t.eat("++") {
                break;
            }
        }
        self.t.expect(";")?;
        self.declarations.declare_alias(pos, name, &qubits)
    }

    /// `gate name(params) qubits { ... }`
    fn definition(&mut self) -> Result<(), CircuitError> {
        self.t.next();
        let pos = self.t.pos();
        let name = self.t.word("a name")?;
        let mut params = Vec::new();
        if self.t.eat("(") {
            params = self.name_list(")")?;
            self.t.expect(")")?;
        }
        let qubits = self.name_list("{")?;
        if qubits.is_empty() {
            return Err(self.t.pos().error("a gate has at least one qubit"));
        }
        let (param_count, qubit_count) = (params.len(), qubits.len());
        self.slots = params;
        self.gate = Some(qubits);
        let body = self.block(&format!("the gate '{}'", cut(name, 40)))?;
        self.gate = None;
        self.slots = Vec::new();
        let definition = Definition {
            name: name.into(),
            params: param_count,
            qubits: qubit_count,
            body,
            is_own: self.is_own,
            is_rotation: !self.is_own && ROTATIONS.contains(&name),
        };
        self.declarations.declare_gate(pos, definition)
    }

    /// Statements in braces.
    fn block(&mut self, what: &str) -> Result<Vec<Statement>, CircuitError> {
        self.t.expect("{")?;
        let mut body = Vec::new();
        while !self.t.eat("}") {
            if self.t.peek() == Token::End {
                return Err(self.t.pos().error(format!("{what} has no closing '}}'")));
            }
            body.extend(self.statement()?);
        }
        Ok(body)
    }

    /// `for int i in [0:2] { ... }`; the public dialect leaves the type out.
    fn each(&mut self) -> Result<Statement, CircuitError> {
        let pos = self.t.pos();
        self.t.next();
        if self.loops >= MAX_LOOPS {
            return Err(pos.error("loops are nested too deep"));
        }
        let has_type = !matches!(self.t.peek_behind(1), Token::Word("in"));
        let kind = if has_type { self.number_type("variables of loops")? } else { InputType::Int(32) };
        let variable = self.t.word("a name")?;
        let in_pos = self.t.pos();
        if self.t.next() != Token::Word("in") {
            return Err(in_pos.error("expected 'in' and the values of the loop"));
        }
        let values = match self.t.next() {
            Token::Mark("[") => {
                let range = self.range(None)?;
                self.t.expect("]")?;
                LoopValues::Range(range)
            }
            Token::Mark("{") => LoopValues::Set(self.set()?),
            other => {
                let text = "expected a range such as [0:3] or a set such as {1, 2, 5}, found";
                return Err(in_pos.error(format!("{text} {}", other.shown())));
            }
        };
        self.slots.push(variable.into());
        self.loops += 1;
        let body = match self.t.is_at("{") {
            true => self.block("the loop")?,
            false => self.statement()?.into_iter().collect(),
        };
        self.loops -= 1;
        self.slots.pop();
        Ok(Statement::For(Loop { pos, values, is_whole: kind != InputType::Real, body }))
    }

    fn name_list(&mut self, end: &str) -> Result<Vec<String>, CircuitError> {
        let mut found: Vec<String> = Vec::new();
        while !self.t.is_at(end) {
            let pos = self.t.pos();
            let name = self.t.word("a name")?;
            if found.iter().any(|n| n == name) || found.len() >= 64 {
                let name = cut(name, 40);
                return Err(pos.error(format!("'{name}' is named twice, or there are too many names")));
            }
            found.push(name.into());
            if !self.t.eat(",") {
                break;
            }
        }
        Ok(found)
    }

    fn gate_or_assignment(&mut self, word: &str) -> Result<Statement, CircuitError> {
        let pos = self.t.pos();
        let is_bits = self.gate.is_none() && self.declarations.bits(word).is_some();
        if is_bits && matches!(self.t.peek_behind(1), Token::Mark("=" | "[")) {
            let bits = self.bit_operand()?;
            self.t.expect("=")?;
            let statement = self.measured_value(pos, bits)?;
            self.t.expect(";")?;
            return Ok(statement);
        }
        self.application().map(Statement::Apply)
    }

    fn application(&mut self) -> Result<Application, CircuitError> {
        let modifiers = self.modifiers()?;
        let pos = self.t.pos();
        let mut name = self.t.word("a gate")?;
        let mut form = Form::Broadcast;
        // The public dialect's word for as many controls as there are qubits to spare.
        if name == "controlled"
            && matches!(self.t.peek(), Token::Word(_))
            && !self.declarations.gates.contains_key(name)
        {
            name = self.t.word("a gate")?;
            form = Form::Controlled;
        }
        let mut callee = self
            .callee(name)
            .ok_or_else(|| pos.error(format!("the gate '{}' is not known", cut(name, 40))))?;
        if let Callee::Fourier(_) = callee
            && form == Form::Broadcast
        {
            form = Form::Joined;
        }
        let mut params = if self.t.eat("(") { self.list(")", 64)? } else { Vec::new() };
        if form == Form::Controlled && matches!(name, "u" | "U") && params.len() <= 1 {
            // There `controlled u` is a cx, and `controlled u(a)` a controlled phase.
            let inner = if params.is_empty() { "x" } else { "p" };
            callee = named_gate(inner).map_or(callee, Callee::Named);
        }
        if params.len() != callee.params() {
            let (name, needed) = (cut(name, 40), callee.params());
            return Err(pos.error(format!("'{name}' takes {needed} parameters, given are {}", params.len())));
        }
        params.shrink_to_fit();
        let has_none = matches!(callee, Callee::GlobalPhase) && self.t.is_at(";");
        let operands = if has_none { Vec::new() } else { self.operands()? };
        self.t.expect(";")?;
        Ok(Application { pos, modifiers, callee, params, operands, form })
    }

    /// The gate of a name: the source's own ones go before what is built in.
    fn callee(&self, name: &str) -> Option<Callee> {
        let defined = self.declarations.gates.get(name);
        if let Some(own) = defined.filter(|definition| definition.is_own) {
            return Some(Callee::Defined(own.clone()));
        }
        match name {
            "qft" => return Some(Callee::Fourier(QFT)),
            "iqft" => return Some(Callee::Fourier(IQFT)),
            "gphase" => return Some(Callee::GlobalPhase),
            _ => {}
        }
        named_gate(name).map(Callee::Named).or_else(|| defined.cloned().map(Callee::Defined))
    }

    fn modifiers(&mut self) -> Result<Vec<Modifier>, CircuitError> {
        let mut found = Vec::new();
        loop {
            let pos = self.t.pos();
            let Token::Word(word) = self.t.peek() else { return Ok(found) };
            if !matches!(word, "ctrl" | "negctrl" | "inv" | "pow")
                || !matches!(self.t.peek_behind(1), Token::Mark("@" | "("))
            {
                return Ok(found);
            }
            self.t.next();
            found.push(match word {
                "inv" => Modifier::Inverse,
                "pow" => {
                    self.t.expect("(")?;
                    let exponent = self.expression()?;
                    self.t.expect(")")?;
                    Modifier::Power(exponent)
                }
                _ => {
                    let mut count = None;
                    if self.t.eat("(") {
                        count = Some(self.expression()?);
                        self.t.expect(")")?;
                    }
                    Modifier::Control { is_negative: word == "negctrl", count }
                }
            });
            self.t.expect("@")?;
            if found.len() > MAX_MODIFIERS {
                return Err(pos.error("too many modifiers"));
            }
        }
    }
}
