//! Pure: statements become the operations of a circuit: loops are unrolled, registers are spread over gates, and
//! measurements get their place in the keys of counts.

use std::collections::BTreeMap;

use super::budget::ExpansionBudget;
use super::expand::expand;
use super::gates::Primitive;
use super::lexer::SourcePos;
use super::program::{Application, Form, Loop, Operand, Statement};
use super::selection::{Evaluation, elements, loop_values};
use super::{Circuit, CircuitError, CircuitOperation, MAX_OPERATIONS, MeasuredBit};

/// Deepest nesting of loops.
const MAX_LOOPS: usize = 40;

/// A circuit under construction.
#[derive(Default)]
pub(super) struct Builder {
    operations: Vec<CircuitOperation>,
    /// Measured qubits in the order of the source.
    measured: Vec<u32>,
    /// The qubit whose measurement each classical bit has at the end.
    bits: BTreeMap<u32, u32>,
    /// Qubits that are measured into no bit.
    unplaced: Vec<u32>,
    /// Qubits that some operation has used, and that are measured: bit sets.
    used: u32,
    is_measured: u32,
    pub budget: ExpansionBudget,
}

impl Builder {
    /// Runs a statement outside of gates. The frame has the variables of the loops around it.
    pub fn run(&mut self, statement: &Statement, frame: &mut Vec<f64>) -> Result<(), CircuitError> {
        match statement {
            Statement::Apply(application) => self.apply(application, frame),
            Statement::For(each) => self.unroll(each, frame),
            Statement::Measure { pos, qubits, bits } => self.measure(*pos, qubits, bits.as_ref(), frame),
            Statement::Reset { pos, qubits } => self.reset(*pos, qubits, frame),
            // Stages come from dependencies; a barrier orders nothing that they don't.
            Statement::Barrier { pos, qubits } => {
                self.budget.expand(1, *pos)?;
                qubits.iter().try_for_each(|operand| self.elements(operand, frame).map(drop))
            }
        }
    }

    /// The elements of an operand outside of gates.
    pub fn elements(&mut self, operand: &Operand, frame: &[f64]) -> Result<Vec<u32>, CircuitError> {
        elements(operand, &[], &mut Evaluation { frame, budget: &mut self.budget })
    }

    fn unroll(&mut self, each: &Loop, frame: &mut Vec<f64>) -> Result<(), CircuitError> {
        if frame.len() >= MAX_LOOPS {
            return Err(each.pos.error("loops are nested too deep"));
        }
        let mut eval = Evaluation { frame, budget: &mut self.budget };
        for value in loop_values(&each.values, each.is_whole, &mut eval)? {
            self.budget.expand(1, each.pos)?;
            frame.push(value);
            each.body.iter().try_for_each(|statement| self.run(statement, frame))?;
            frame.pop();
        }
        Ok(())
    }

    /// A gate on qubits, once or for each element of the registers.
    fn apply(&mut self, application: &Application, frame: &[f64]) -> Result<(), CircuitError> {
        let pos = application.pos;
        let mut operands = Vec::with_capacity(application.operands.len());
        for operand in &application.operands {
            operands.push(self.elements(operand, frame)?);
        }
        if application.form != Form::Broadcast || operands.is_empty() {
            return self.apply_once(application, &operands.concat(), frame);
        }
        let length = operands.iter().map(Vec::len).max().unwrap_or(0);
        if operands.iter().any(|o| o.len() != 1 && o.len() != length) {
            return Err(pos.error("registers of different sizes can't be used together"));
        }
        for n in 0..length {
            let qubits: Vec<u32> = operands.iter().map(|o| if o.len() == 1 { o[0] } else { o[n] }).collect();
            self.apply_once(application, &qubits, frame)?;
        }
        Ok(())
    }

    fn apply_once(
        &mut self,
        application: &Application,
        qubits: &[u32],
        frame: &[f64],
    ) -> Result<(), CircuitError> {
        let pos = application.pos;
        // The phase that is left belongs to the whole state, where it means nothing.
        let expansion = expand(application, qubits, &mut Evaluation { frame, budget: &mut self.budget })?;
        for gate in expansion.gates.into_iter().flat_map(Primitive::sent) {
            for qubit in gate.qubits.iter() {
                if self.is_measured & 1 << qubit != 0 {
                    return Err(pos.error(format!(
                        "qubit {qubit} was measured before this gate: this coordinator measures at the end only, so \
                         move the measurement behind the last gate on the qubit"
                    )));
                }
                self.used |= 1 << qubit;
            }
            self.push(pos, gate.operation())?;
        }
        Ok(())
    }

    fn reset(&mut self, pos: SourcePos, qubits: &Operand, frame: &[f64]) -> Result<(), CircuitError> {
        self.budget.expand(1, pos)?;
        let used = self.used | self.is_measured;
        match self.elements(qubits, frame)?.into_iter().find(|qubit| used & 1 << qubit != 0) {
            None => Ok(()),
            Some(qubit) => Err(pos.error(format!(
                "qubit {qubit} was used before this 'reset': this coordinator doesn't reset qubits in the middle of a \
                 circuit; declare another qubit and use that one from here on"
            ))),
        }
    }

    fn measure(
        &mut self,
        pos: SourcePos,
        qubits: &Operand,
        bits: Option<&Operand>,
        frame: &[f64],
    ) -> Result<(), CircuitError> {
        self.budget.expand(1, pos)?;
        let qubits = self.elements(qubits, frame)?;
        let bits = bits.map(|bits| self.elements(bits, frame)).transpose()?;
        if let Some(bits) = &bits
            && bits.len() != qubits.len()
        {
            let (from, to) = (qubits.len(), bits.len());
            return Err(pos.error(format!("{from} qubits are measured into {to} bits")));
        }
        for (n, &qubit) in qubits.iter().enumerate() {
            if self.is_measured & 1 << qubit != 0 {
                return Err(
                    pos.error(format!("qubit {qubit} is measured twice: measure it once, at the end"))
                );
            }
            self.is_measured |= 1 << qubit;
            self.measured.push(qubit);
            match bits.as_ref().and_then(|bits| bits.get(n)) {
                // What the bit had before is overwritten.
                Some(bit) => drop(self.bits.insert(*bit, qubit)),
                None => self.unplaced.push(qubit),
            }
            let raw_text = format!("measure q[{qubit}];");
            self.push(
                pos,
                CircuitOperation { service: "measurement_feedforward", qubits: vec![qubit], raw_text },
            )?;
        }
        Ok(())
    }

    fn push(&mut self, pos: SourcePos, operation: CircuitOperation) -> Result<(), CircuitError> {
        if self.operations.len() >= MAX_OPERATIONS {
            return Err(pos.error(format!("the circuit has more than {MAX_OPERATIONS} operations")));
        }
        self.operations.push(operation);
        Ok(())
    }

    /// The circuit with so many qubits and these names of classical bits.
    pub fn finish(self, qubits: u32, bit_names: &[String], inputs: Vec<String>) -> Circuit {
        let name = |bit: u32| bit_names.get(bit as usize).cloned();
        let placed = self.bits.into_iter().map(|(bit, qubit)| MeasuredBit { qubit, bit: name(bit) });
        let unplaced = self.unplaced.into_iter().map(|qubit| MeasuredBit { qubit, bit: None });
        let bits = placed.chain(unplaced).collect();
        Circuit { qubits, operations: self.operations, measured: self.measured, bits, inputs }
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}
