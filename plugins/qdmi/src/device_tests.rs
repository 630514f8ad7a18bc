//! Device mapping, on stated facts.

use std::path::PathBuf;
use std::time::Duration;

use super::*;

fn settings() -> Settings {
    Settings {
        config_file: "device.yaml".into(),
        library: PathBuf::from("/opt/liba.so"),
        prefix: "A".into(),
        session: Vec::new(),
        job: Vec::new(),
        format: None,
        bit_order: Some(BitOrder::FirstLeft),
        targets: None,
        slots: 2,
        addressing: Addressing::Physical,
        poll_max: Duration::from_millis(500),
        check_retry: Duration::from_secs(30),
        refresh: Duration::from_secs(30),
    }
}

fn facts(operations: &str, pairs: &[(u16, u16)]) -> Facts {
    Facts {
        name: "lab".into(),
        version: Some("1.2".into()),
        num_qubits: 3,
        qubits: [4, 7, 1].map(|index| Qubit { index, name: format!("QB{index}") }).into(),
        operations: operations.split_whitespace().map(String::from).collect(),
        pairs: Some(pairs.to_vec()),
        cnot_pairs: None,
        formats: Some(vec![0, 1]),
    }
}

#[test]
fn a_device_has_name_qubits_targets_and_edges() {
    let told = facts("rx ry rz cz", &[(0, 1), (1, 0), (2, 1)]);
    let found = describe(&told, Abi::V1_4, &settings()).unwrap();
    let device = &found.device;
    assert_eq!((device.name.as_str(), device.num_qubits, device.slots), ("lab 1.2", 3, 2));
    assert_eq!((&device.targets[..], device.max_shots), (&[Target::Cz][..], None));
    assert_eq!(device.connectivity, Connectivity::Undirected(vec![(0, 1), (1, 2)]));
    let form = found.form.unwrap();
    assert_eq!((form.format, &form.layout.indices[..]), (Format::Qasm3, &[4, 7, 1][..]));
    assert_eq!(form.layout.register_width, Some(3));
}

#[test]
fn edges_are_directed_for_cnot_alone() {
    let mut told = facts("rx ry rz cx", &[(0, 1), (1, 0), (2, 1)]);
    let found = |told: &Facts| describe(told, Abi::V1_4, &settings()).unwrap().device.connectivity;
    assert_eq!(found(&told), Connectivity::Directed(vec![(0, 1), (1, 0), (2, 1)]));
    told.cnot_pairs = Some(vec![(2, 0)]);
    assert_eq!(found(&told), Connectivity::Directed(vec![(2, 0)]));
    told.operations.push("cz".into());
    assert_eq!(found(&told), Connectivity::Undirected(vec![(0, 1), (1, 2)]), "cz is preferred");
    told.pairs = None;
    assert_eq!(found(&told), Connectivity::Unknown);
}

#[test]
fn formats_are_chosen_in_order() {
    let format = |formats: Option<&[i32]>, stated: Option<Format>| {
        let mut told = facts("r cz", &[]);
        told.formats = formats.map(<[i32]>::to_vec);
        let settings = Settings { format: stated, ..settings() };
        describe(&told, Abi::V1_4, &settings)
            .map_err(|e| e.to_string())
            .map(|found| found.form.map(|form| form.format))
    };
    for (formats, wants) in
        [(&[0, 1, 8][..], Format::Qasm3), (&[8, 0], Format::Qasm2), (&[2, 8], Format::IqmJson)]
    {
        assert_eq!(format(Some(formats), None), Ok(Ok(wants)));
    }
    assert_eq!(format(Some(&[0, 1]), Some(Format::Qasm2)), Ok(Ok(Format::Qasm2)));
    assert_eq!(format(None, Some(Format::Qasm2)), Ok(Ok(Format::Qasm2)));
    let refused = format(Some(&[0, 8]), Some(Format::Qasm3)).unwrap_err();
    assert!(refused.contains("takes qasm2, iqm_json"), "{refused}");
    for (formats, told) in
        [(None, "it takes none"), (Some(&[][..]), "it takes none"), (Some(&[2]), "it takes 2")]
    {
        let why = format(formats, None).unwrap().unwrap_err();
        assert!(why.contains("no program format") && why.contains(told), "{why}");
    }
}

#[test]
fn the_bit_order_is_needed_where_there_are_results() {
    let unknown = Settings { bit_order: None, ..settings() };
    let error = describe(&facts("r cz", &[]), Abi::V1_4, &unknown).unwrap_err().to_string();
    assert!(error.contains("`bit_order` is missing") && error.contains("--only bit-order"), "{error}");
    let mut mute = facts("r cz", &[]);
    mute.formats = None;
    assert!(describe(&mute, Abi::V1_4, &unknown).is_ok());
}

#[test]
fn devices_that_do_not_fit_are_refused() {
    let refused = |told: &Facts| describe(told, Abi::V1_4, &settings()).unwrap_err().to_string();
    assert!(refused(&facts("gpi gpi2 ms", &[])).contains("gpi, gpi2, ms"));
    assert!(refused(&facts("r cz move", &[])).contains("operation move"));
    assert!(describe(&facts("r cz move", &[(0, 1)]), Abi::V1_4, &settings()).is_ok());
    let none = Facts { qubits: Vec::new(), ..facts("r cz", &[]) };
    assert!(refused(&none).contains("tells of 3 qubits and gives no sites"));
    let mut json = facts("r cz", &[]);
    json.formats = Some(vec![8]);
    json.qubits[1].name.clear();
    assert!(refused(&json).contains("site 7 has none"));
    json.operations = vec!["rx".into(), "ry".into(), "rz".into(), "cx".into()];
    json.qubits[1].name = "QB".into();
    assert!(refused(&json).contains("for target cz alone"));
}

#[test]
fn names_are_bounded_and_plain() {
    let mut told = facts("r cz", &[]);
    told.name = "\u{1b}[2J".to_string() + &"x".repeat(1000);
    let name = describe(&told, Abi::V1_4, &settings()).unwrap().device.name;
    assert!(name.len() == MAX_NAME && !name.contains('\u{1b}'), "{name}");
    (told.name, told.version) = (String::new(), None);
    assert_eq!(describe(&told, Abi::V1_4, &settings()).unwrap().device.name, "A");
}

#[test]
fn a_device_that_takes_no_jobs_says_why() {
    for (status, code, says) in [
        (0, Some(ErrorCode::Hardware), "offline"),
        (1, None, ""),
        (2, None, ""),
        (3, Some(ErrorCode::Hardware), "error"),
        (4, Some(ErrorCode::Hardware), "maintenance"),
        (5, Some(ErrorCode::Calibration), "calibrated"),
        (77, None, ""),
    ] {
        let refusal = refusal(status);
        assert_eq!(refusal.as_ref().map(|e| e.code), code, "{status}");
        assert!(refusal.is_none_or(|e| e.text.contains(says) && e.retryable), "{status}");
    }
}

#[test]
fn a_register_of_a_large_device_is_not_its_sites() {
    let mut told = facts("rx ry rz cz", &[]);
    let form = |told: &Facts, addressing| {
        let settings = Settings { addressing, ..settings() };
        describe(told, Abi::V1_4, &settings).unwrap().form.unwrap()
    };
    assert!(!register_is_uncertain(&form(&told, Addressing::Register)));
    told.num_qubits = 65_535;
    assert!(register_is_uncertain(&form(&told, Addressing::Register)));
    assert!(!register_is_uncertain(&form(&told, Addressing::Physical)));
}
