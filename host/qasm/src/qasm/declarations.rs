//! Pure: what a source declares: registers, aliases, constants, inputs and gates.
//!
//! Qubits are numbered over all registers in the order of their declaration, and so are classical bits. A source names
//! its qubits by registers or by the numbers of the hardware (`$0`), never both.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::expression::Scope;
use super::lexer::SourcePos;
use super::program::Definition;
use super::{CircuitError, MAX_QUBITS};

/// Longest classical register, and most classical bits of a circuit.
pub(super) const MAX_BITS: u32 = 4096;
/// Most names of one kind.
const MAX_NAMES: usize = 1024;

/// Elements that a name stands for.
pub(super) type Elements = Rc<[u32]>;

#[derive(Default)]
pub(super) struct Declarations {
    /// Registers and aliases.
    qubits: HashMap<String, Elements>,
    bits: HashMap<String, Elements>,
    pub constants: HashMap<String, f64>,
    pub gates: HashMap<String, Rc<Definition>>,
    /// Names of the inputs that were declared.
    pub inputs: Vec<String>,
    /// How many qubits the circuit has.
    pub qubit_count: u32,
    /// `c[0]` and so on, by the number of the bit.
    pub bit_names: Vec<String>,
    names_hardware: bool,
}

impl Declarations {
    /// What names of constants mean outside of gates and loops.
    pub fn scope<'s>(&'s self, slots: &'s [String]) -> Scope<'s> {
        Scope { slots, constants: Some(&self.constants) }
    }

    pub fn qubits(&self, name: &str) -> Option<Elements> {
        self.qubits.get(name).cloned()
    }

    pub fn bits(&self, name: &str) -> Option<Elements> {
        self.bits.get(name).cloned()
    }

    fn free(&self, pos: SourcePos, name: &str) -> Result<(), CircuitError> {
        let is_used = self.qubits.contains_key(name)
            || self.bits.contains_key(name)
            || self.constants.contains_key(name);
        if is_used {
            return Err(pos.error(format!("'{}' is declared already", crate::model::cut(name, 40))));
        }
        let most = self.qubits.len().max(self.bits.len()).max(self.constants.len());
        if most >= MAX_NAMES {
            return Err(pos.error(format!("more than {MAX_NAMES} registers, aliases or constants")));
        }
        Ok(())
    }

    /// Adds a register of qubits.
    pub fn declare_qubits(&mut self, pos: SourcePos, name: &str, size: u32) -> Result<(), CircuitError> {
        self.free(pos, name)?;
        if self.names_hardware {
            return Err(
                pos.error("the circuit names qubits of the hardware ($0), so it can't have registers")
            );
        }
        let first = self.qubit_count;
        if first + size > MAX_QUBITS {
            let name = crate::model::cut(name, 40);
            return Err(pos.error(format!("with '{name}' the circuit has more than {MAX_QUBITS} qubits")));
        }
        self.qubit_count += size;
        self.qubits.insert(name.into(), (first..first + size).collect());
        Ok(())
    }

    /// A qubit of the hardware; the circuit has all of them up to the highest number.
    pub fn physical(&mut self, pos: SourcePos, number: u32) -> Result<Elements, CircuitError> {
        if !self.names_hardware && self.qubit_count > 0 {
            return Err(pos.error(format!("the circuit has registers, so it can't name the qubit ${number}")));
        }
        if number >= MAX_QUBITS {
            return Err(
                pos.error(format!("a circuit has at most {MAX_QUBITS} qubits, there is no ${number}"))
            );
        }
        self.names_hardware = true;
        self.qubit_count = self.qubit_count.max(number + 1);
        Ok([number].into())
    }

    /// Adds a register of classical bits, or without a size a single bit.
    pub fn declare_bits(
        &mut self,
        pos: SourcePos,
        name: &str,
        size: Option<u32>,
    ) -> Result<Elements, CircuitError> {
        self.free(pos, name)?;
        let is_single = size.is_none();
        let size = size.unwrap_or(1);
        let first = u32::try_from(self.bit_names.len()).unwrap_or(MAX_BITS);
        if first + size > MAX_BITS {
            return Err(pos.error(format!("the circuit has more than {MAX_BITS} classical bits")));
        }
        let bit_name = |n| if is_single { name.to_string() } else { format!("{name}[{n}]") };
        self.bit_names.extend((0..size).map(bit_name));
        let elements: Elements = (first..first + size).collect();
        self.bits.insert(name.into(), elements.clone());
        Ok(elements)
    }

    /// `let name = ...;`
    pub fn declare_alias(&mut self, pos: SourcePos, name: &str, qubits: &[u32]) -> Result<(), CircuitError> {
        self.free(pos, name)?;
        let mut seen = 0_u32;
        for qubit in qubits {
            if seen & 1 << qubit != 0 {
                return Err(pos.error(format!("qubit {qubit} is twice in this alias")));
            }
            seen |= 1 << qubit;
        }
        self.qubits.insert(name.into(), qubits.into());
        Ok(())
    }

    pub fn declare_constant(&mut self, pos: SourcePos, name: &str, value: f64) -> Result<(), CircuitError> {
        self.free(pos, name)?;
        self.constants.insert(name.into(), value);
        Ok(())
    }

    /// Adds a gate. One of the source replaces a built-in one, and is never replaced.
    pub fn declare_gate(&mut self, pos: SourcePos, definition: Definition) -> Result<(), CircuitError> {
        let name = definition.name.clone();
        if self.gates.get(&name).is_some_and(|existing| existing.is_own) {
            let name = crate::model::cut(&name, 40);
            return Err(pos.error(format!("the gate '{name}' is defined twice")));
        }
        self.gates.insert(name, Rc::new(definition));
        Ok(())
    }

    /// `input type name;`: a constant whose value comes with the job.
    pub fn declare_input(
        &mut self,
        pos: SourcePos,
        kind: InputType,
        name: &str,
        given: &BTreeMap<String, f64>,
    ) -> Result<(), CircuitError> {
        let wrong = |text: String| CircuitError { is_input: true, ..pos.error(text) };
        let shown = crate::model::cut(name, 40);
        let value = *given.get(name).ok_or_else(|| {
            wrong(format!(
                "the input '{shown}' has no value: give one with the job, in 'inputs' or with --input"
            ))
        })?;
        kind.check(value)
            .map_err(|needed| wrong(format!("the input '{shown}' is {value}, {needed} is needed")))?;
        self.declare_constant(pos, name, value)?;
        self.inputs.push(name.into());
        Ok(())
    }
}

/// The type of an input, with its width in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputType {
    Real,
    Int(u32),
    Uint(u32),
}

impl InputType {
    /// Whether it has this value; else what is needed.
    pub fn check(self, value: f64) -> Result<(), String> {
        let (first, last) = match self {
            InputType::Real if value.is_finite() => return Ok(()),
            InputType::Real => return Err("a finite number".into()),
            InputType::Int(bits) => (-(2_f64.powi(bits as i32 - 1)), 2_f64.powi(bits as i32 - 1) - 1.0),
            InputType::Uint(bits) => (0.0, 2_f64.powi(bits as i32) - 1.0),
        };
        match value.fract() == 0.0 && (first..=last).contains(&value) {
            true => Ok(()),
            false => Err(format!("a whole number from {first} to {last}")),
        }
    }
}
