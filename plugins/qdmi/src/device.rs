//! From what a library tells of its device to the device that the host sees, and how programs for it are written.
//!
//! Contract: [`read`] asks the library and copies what it says, so that no handle outlives it; [`describe`] is pure. What
//! doesn't fit is an error for the operator that names the property.

use std::collections::{BTreeSet, HashMap, HashSet};

use coda_plugin_abi::ir::MAX_QUBITS;
use coda_plugin_abi::{Connectivity, Device, Error, ErrorCode, Stage, Target};

use crate::abi::{Abi, Answer, Failure, INVALID_ARGUMENT, Session, Site, device_property, optional};
use crate::config::{Addressing, BitOrder, Format, Settings};
use crate::gates::{self, Dialect};
use crate::program::{Form, Layout};

/// Operations on one qubit that circuits are made of.
const ROTATIONS: &[&str] = &["prx", "r", "rx", "ry", "sx"];
/// Longest name of a device that is passed on.
const MAX_NAME: usize = 200;

/// What the library says, with qubits by their position among the device's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    pub name: String,
    pub version: Option<String>,
    /// `QUBITSNUM`.
    pub num_qubits: usize,
    pub qubits: Vec<Qubit>,
    pub operations: Vec<String>,
    /// Pairs of qubits that are coupled; `None` when the library doesn't tell.
    pub pairs: Option<Vec<(u16, u16)>>,
    /// Control and target of the controlled-not, where the library tells.
    pub cnot_pairs: Option<Vec<(u16, u16)>>,
    /// `None` when the library doesn't tell.
    pub formats: Option<Vec<i32>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Qubit {
    /// `INDEX` of its site.
    pub index: usize,
    /// `NAME` of its site; empty where it has none.
    pub name: String,
}

/// A device and how it is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    pub device: Device,
    /// `Err`: why no program can be written, for the sender of a job.
    pub form: Result<Form, String>,
    pub bit_order: BitOrder,
}

/// Why a device can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("{0}")]
    Library(#[from] Failure),
    #[error("{0}")]
    Unusable(String),
}

/// Asks the library.
///
/// # Errors
/// When it fails to tell what is needed.
pub fn read(session: &Session) -> Result<Facts, DeviceError> {
    use device_property as property;
    let num_qubits = session.size(property::QUBITS_NUM)?;
    let mut sites = qubits(session, num_qubits)?;
    drop_resonators(session, &mut sites)?;
    let positions: HashMap<Site<'_>, u16> =
        sites.iter().zip(0..).map(|((site, _), position)| (*site, position)).collect();

    let mut operations = Vec::new();
    let mut cnot_pairs = None;
    for operation in session.operations()? {
        let name = session.operation_name(operation)?;
        if matches!(name.as_str(), "cx" | "cnot") {
            let sites = optional(session.operation_sites(operation))?;
            cnot_pairs = sites.map(|flat| pairs(&flat, &positions, "an operation's SITES")).transpose()?;
        }
        operations.push(name);
    }
    let map = optional(session.sites(property::COUPLING_MAP))?;
    Ok(Facts {
        name: session.text(property::NAME)?,
        version: optional(session.text(property::VERSION))?,
        num_qubits,
        qubits: sites.into_iter().map(|(_, qubit)| qubit).collect(),
        operations,
        pairs: map.map(|flat| pairs(&flat, &positions, "COUPLINGMAP")).transpose()?,
        // An empty list says that it acts anywhere.
        cnot_pairs: cnot_pairs.filter(|pairs| !pairs.is_empty()),
        formats: optional(session.ints(property::PROGRAM_FORMATS))?,
    })
}

/// Sites that are not zones, in the order of the library, the first `num_qubits` of them and at most 50.
fn qubits(session: &Session, num_qubits: usize) -> Result<Vec<(Site<'_>, Qubit)>, DeviceError> {
    let wanted = num_qubits.min(usize::from(MAX_QUBITS));
    let (mut found, mut indices) = (Vec::new(), BTreeSet::new());
    for site in session.sites(device_property::SITES)? {
        if found.len() == wanted {
            break;
        }
        if optional(session.site_is_zone(site))? == Some(true) {
            continue;
        }
        let index = session.site_index(site)?;
        if !indices.insert(index) {
            return Err(DeviceError::Unusable(format!(
                "the device library gives two sites the INDEX {index}"
            )));
        }
        let name = optional(session.site_name(site))?.unwrap_or_default();
        found.push((site, Qubit { index, name }));
    }
    Ok(found)
}

/// Drops sites from the end that no rotation acts on: some libraries count resonators, behind the qubits, as qubits. One
/// before the end stays, so that a qubit that can't be used today doesn't change the numbers of the others.
fn drop_resonators(session: &Session, sites: &mut Vec<(Site<'_>, Qubit)>) -> Result<(), DeviceError> {
    let mut rotated = HashSet::new();
    for operation in session.operations()? {
        if ROTATIONS.contains(&session.operation_name(operation)?.as_str()) {
            rotated.extend(optional(session.operation_sites(operation))?.unwrap_or_default());
        }
    }
    // Without any, the library doesn't tell.
    while !rotated.is_empty() && sites.pop_if(|(site, _)| !rotated.contains(site)).is_some() {}
    Ok(())
}

/// Pairs of qubits; those with a site that is none of them are dropped.
///
/// # Errors
/// When a site is left over.
fn pairs(
    flat: &[Site<'_>],
    positions: &HashMap<Site<'_>, u16>,
    property: &str,
) -> Result<Vec<(u16, u16)>, DeviceError> {
    let (pairs, rest) = flat.as_chunks::<2>();
    if !rest.is_empty() {
        let sites = flat.len();
        return Err(DeviceError::Unusable(format!(
            "the device library answered {sites} sites to the query of {property}, which has pairs"
        )));
    }
    let position = |site: &Site<'_>| positions.get(site).copied();
    let of_qubits = pairs.iter().filter_map(|[a, b]| Some((position(a)?, position(b)?)));
    Ok(of_qubits.filter(|(a, b)| a != b).collect())
}

/// Decides what the device is to the host.
///
/// # Errors
/// When no gate set fits, a setting is missing, or the library says what can't be.
pub fn describe(facts: &Facts, abi: Abi, settings: &Settings) -> Result<Description, DeviceError> {
    let unusable = |what: String| DeviceError::Unusable(what);
    let num_qubits = u16::try_from(facts.qubits.len()).unwrap_or(MAX_QUBITS);
    if num_qubits == 0 {
        let (told, zones) = (facts.num_qubits, "sites that are not zones");
        return Err(unusable(format!("the device library tells of {told} qubits and gives no {zones}")));
    }
    let pairs_remain = facts.pairs.as_ref().is_some_and(|pairs| !pairs.is_empty());
    if facts.operations.iter().any(|name| name == "move") && !pairs_remain && num_qubits > 1 {
        return Err(unusable(
            "the device couples its qubits only over a resonator (operation move), which circuits of native gates can't \
             say; choose another device"
                .into(),
        ));
    }
    let format = format(facts, settings).map_err(unusable)?;
    let (targets, dialect) = match format {
        Some(Format::IqmJson) => (iqm_targets(facts, settings).map_err(unusable)?, Dialect::iqm()),
        _ => gates::choose(&facts.operations, settings.targets.as_deref()).map_err(unusable)?,
    };
    let bit_order = match (settings.bit_order, format) {
        (Some(order), _) => order,
        // Nothing is ever read back.
        (None, None) => BitOrder::FirstLeft,
        (None, Some(_)) => return Err(unusable(unknown_bit_order(&settings.prefix))),
    };
    let name = match &facts.version {
        Some(version) if !version.is_empty() => format!("{} {version}", facts.name),
        _ => facts.name.clone(),
    };
    let name: String = name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
    let name = if name.trim().is_empty() { settings.prefix.clone() } else { name };
    let mut device = Device::new(name, num_qubits, targets.clone())
        .with_connectivity(connectivity(facts, targets.first() == Some(&Target::Cnot)));
    device.slots = settings.slots;
    let layout = Layout {
        indices: facts.qubits.iter().map(|qubit| qubit.index).collect(),
        names: facts.qubits.iter().map(|qubit| qubit.name.clone()).collect(),
        register_width: u16::try_from(facts.num_qubits).ok().filter(|width| *width <= MAX_QUBITS),
    };
    let form = match format {
        Some(format) => Ok(Form { format, addressing: settings.addressing, dialect, layout }),
        None => Err(no_format(facts, abi)),
    };
    Ok(Description { device, form, bit_order })
}

/// The language of programs; `None` when the library takes none that is known here.
fn format(facts: &Facts, settings: &Settings) -> Result<Option<Format>, String> {
    let takes = |format: Format| facts.formats.as_ref().map(|codes| codes.contains(&format.code()));
    match settings.format {
        None => Ok(Format::ALL.into_iter().find(|format| takes(*format) == Some(true))),
        Some(format) if takes(format) == Some(false) => {
            let known = Format::ALL.into_iter().filter(|format| takes(*format) == Some(true));
            let known: Vec<&str> = known.map(Format::name).collect();
            let known = if known.is_empty() { "none that is known".to_string() } else { known.join(", ") };
            Err(format!("`format` is {}, and the device library takes {known}", format.name()))
        }
        Some(format) => Ok(Some(format)),
    }
}

fn no_format(facts: &Facts, abi: Abi) -> String {
    let told = match facts.formats.as_deref() {
        None | Some([]) => "none".to_string(),
        Some(codes) => codes.iter().map(i32::to_string).collect::<Vec<_>>().join(", "),
    };
    format!(
        "the device library (interface {abi}) takes no program format that is known here: OpenQASM 3 (1), OpenQASM 2 (0), \
         IQM JSON (8); it takes {told}"
    )
}

fn iqm_targets(facts: &Facts, settings: &Settings) -> Result<Vec<Target>, String> {
    if let Some(nameless) = facts.qubits.iter().find(|qubit| qubit.name.is_empty()) {
        return Err(format!("IQM JSON needs the names of sites, and site {} has none", nameless.index));
    }
    let (targets, _) = gates::choose(&facts.operations, settings.targets.as_deref())?;
    match targets.contains(&Target::Cz) {
        true => Ok(vec![Target::Cz]),
        false => Err(format!(
            "IQM JSON is written for target cz alone, and the device's operations are {}",
            facts.operations.join(", ")
        )),
    }
}

fn unknown_bit_order(prefix: &str) -> String {
    format!(
        "`bit_order` is missing, and which character of a result is bit 0 is not known for {prefix}; set it to first_left \
         or first_right and run `coda-host plugin check libcoda_qdmi.so --device FILE --only bit-order --tolerance 0.1`, \
         which fails with \"the keys are reversed\" for the wrong one"
    )
}

fn connectivity(facts: &Facts, directed: bool) -> Connectivity {
    let unique = |pairs: &[(u16, u16)], order: &dyn Fn((u16, u16)) -> (u16, u16)| {
        pairs.iter().map(|pair| order(*pair)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    if directed {
        return match facts.cnot_pairs.as_ref().or(facts.pairs.as_ref()) {
            Some(pairs) => Connectivity::Directed(unique(pairs, &|pair| pair)),
            None => Connectivity::Unknown,
        };
    }
    match &facts.pairs {
        Some(pairs) => Connectivity::Undirected(unique(pairs, &|(a, b)| (a.min(b), a.max(b)))),
        None => Connectivity::Unknown,
    }
}

/// Whether the device takes jobs now, by its STATUS. `None`: yes, or it doesn't tell.
pub fn refusal(status: i32) -> Option<Error> {
    let (code, what) = match status {
        0 => (ErrorCode::Hardware, "is offline"),
        3 => (ErrorCode::Hardware, "reports an error"),
        4 => (ErrorCode::Hardware, "is in maintenance"),
        5 => (ErrorCode::Calibration, "is being calibrated"),
        _ => return None,
    };
    Some(Error::new(code, format!("the device {what}")).at(Stage::Run).retryable())
}

/// The device's STATUS; `None` where the library doesn't tell.
///
/// # Errors
/// The library's answer.
pub fn status(session: &Session) -> Answer<Option<i32>> {
    optional(session.int(device_property::STATUS))
}

/// The length of the device's queue; `None` where the library doesn't tell.
///
/// # Errors
/// The library's answer.
pub fn queue_length(session: &Session) -> Answer<Option<usize>> {
    match session.size(device_property::QUEUE_LENGTH) {
        // A library that is older than this property takes its number for a mistake.
        Err(failure) if failure.status() == Some(INVALID_ARGUMENT) => Ok(None),
        answer => optional(answer),
    }
}

/// Whether a register is the only way to name this device's qubits, and can't be trusted to be its sites.
pub fn register_is_uncertain(form: &Form) -> bool {
    let by_register = form.format == Format::Qasm2
        || form.format == Format::Qasm3 && form.addressing == Addressing::Register;
    by_register && form.layout.register_width.is_none()
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
