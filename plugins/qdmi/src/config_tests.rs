//! What `device.yaml` may hold, as tables.

use super::*;

/// A directory with a manifest of three devices beside a file that stands for the library.
fn site() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("liba.so"), "no ELF file").unwrap();
    std::fs::write(dir.path().join("a.json"), "{}").unwrap();
    std::fs::write(dir.path().join("secret"), "s3cret\n").unwrap();
    std::fs::write(dir.path().join("empty"), "\n").unwrap();
    std::fs::write(dir.path().join("large"), "s3cret".repeat(11_000)).unwrap();
    let manifest = r#"{"schema-version": 1, "qdmi": {"devices": [
        {"id": "a.one", "library": "liba.so.1", "prefix": "A", "session": {"base-url": "https://a", "custom1": "x"}},
        {"id": "a.two", "library": "liba.so", "prefix": "IQM", "session": {"device-config": {"file": "a.json"}}},
        {"id": "b", "library": "libb.so", "prefix": "B"}]}}"#;
    std::fs::write(dir.path().join("a.qdmi.json"), manifest).unwrap();
    dir
}

fn settings(dir: &Path, yaml: &str) -> Result<Settings, String> {
    let config: Config = serde_yaml::from_str(yaml).map_err(|e| e.to_string())?;
    let environment = |name: &str| match name {
        "LAB_TOKEN" => Ok("from-env".to_string()),
        "EMPTY" => Ok(String::new()),
        "NO_TEXT" => Err(VarError::NotUnicode("x".into())),
        _ => Err(VarError::NotPresent),
    };
    config.check("device.yaml", dir, &environment)
}

fn values(parameters: &[Parameter]) -> Vec<(&str, i32, String)> {
    let shown = |p: &Parameter| (p.key, p.item.0, String::from_utf8_lossy(&p.value).into_owned());
    parameters.iter().map(shown).collect()
}

#[test]
fn a_device_of_the_manifest_is_overruled_key_by_key() {
    let dir = site();
    let yaml =
        "library: liba.so\ndevice: a.one\nsession: {custom1: y, token_env: LAB_TOKEN, custom3: {u64: 258}}\n";
    let found = settings(dir.path(), yaml).unwrap();
    assert_eq!((found.prefix.as_str(), found.library), ("A", dir.path().join("liba.so")));
    let session = values(&found.session);
    let wants = [
        ("base_url", 0, "https://a\0".to_string()),
        ("custom1", 999_999_995, "y\0".to_string()),
        ("custom3", 999_999_997, "\u{2}\u{1}\0\0\0\0\0\0".to_string()),
        ("token", 1, "from-env\0".to_string()),
    ];
    assert_eq!(session, wants);
    let of_manifest: Vec<bool> = found.session.iter().map(|p| p.from_manifest).collect();
    assert_eq!(of_manifest, [true, false, false, false]);
    assert_eq!(found.bit_order, None, "nothing is known of A");
    let debug = format!("{:?}", found.session);
    assert_eq!(debug, "[base_url, custom1, custom3, token]", "no values");
}

#[test]
fn a_directory_stands_for_the_library_of_the_device() {
    let dir = site();
    let found = settings(dir.path(), "library: .\ndevice: a.two\n").unwrap();
    assert_eq!(found.library.file_name().unwrap(), "liba.so");
    assert_eq!(values(&found.session)[0].0, "custom2");
    assert_eq!(found.bit_order, Some(BitOrder::FirstLeft), "known for IQM");
    assert_eq!((found.slots, found.poll_max, found.format), (1, Duration::from_millis(500), None));
}

#[test]
fn secrets_come_from_one_place() {
    let dir = site();
    for (keys, wants) in [
        ("token: abc", "abc\0"),
        ("token_file: secret", "s3cret\0"),
        ("token_env: LAB_TOKEN", "from-env\0"),
        ("password_file: secret", "s3cret\0"),
    ] {
        let yaml = format!("library: liba.so\nprefix: A\nsession: {{{keys}}}\n");
        assert_eq!(values(&settings(dir.path(), &yaml).unwrap().session)[0].2, wants, "{keys}");
    }
}

#[test]
fn values_for_jobs_are_typed() {
    let dir = site();
    let yaml =
        "library: liba.so\nprefix: A\njob: {custom1: '7', custom2: {f64: 0.5}, custom5: {hex: 00fF}}\n";
    let job = settings(dir.path(), yaml).unwrap().job;
    let bytes: Vec<&[u8]> = job.iter().map(|p| p.value.as_slice()).collect();
    assert_eq!(bytes, [b"7\0".as_slice(), &0.5f64.to_ne_bytes(), &[0x00, 0xff]]);
}

#[test]
fn what_can_not_be_used_is_named() {
    let dir = site();
    for (yaml, says) in [
        ("{}", "missing field `library`"),
        ("library: liba.so\ncolour: red", "unknown field `colour`"),
        ("library: liba.so\nsession: {colour: red}", "unknown field `colour`"),
        ("library: none.so\nprefix: A", "which is not a file"),
        (
            "library: liba.so\nprefix: A\nsession: {token_file: /dev/null}",
            "`session.token_file` is /dev/null, which is not a file",
        ),
        ("library: liba.so", "can't be read"),
        ("library: .", "has no QDMI library"),
        ("library: liba.so\ndevice: a.none", "have: a.one, a.two, b"),
        ("library: liba.so\ndevice: b", "correct one of them"),
        ("library: .\ndevice: b", "libb.so, which is not a file"),
        ("library: liba.so\nprefix: 'A B'", "`prefix` is \"A B\""),
        ("library: liba.so\nprefix: A\nslots: 0", "`slots` is 0; set it to 1 to 64"),
        ("library: liba.so\nprefix: A\npoll_max_ms: 0", "`poll_max_ms` is 0"),
        ("library: liba.so\nprefix: A\ntargets: []", "`targets` is empty"),
        ("library: liba.so\nprefix: A\ntargets: [xy]", "unknown variant `xy`"),
        ("library: liba.so\nprefix: A\nformat: qir", "unknown variant `qir`"),
        ("library: liba.so\nprefix: A\nbit_order: left", "unknown variant `left`"),
        ("library: liba.so\nprefix: A\nsession: {custom1: 7}", "in quotes if it is a number"),
        ("library: liba.so\nprefix: A\nsession: {custom1: {hex: 0x}}", "`custom1.hex` is not hexadecimal"),
        ("library: liba.so\nprefix: A\nsession: {custom1: {hex: ''}}", "`custom1.hex` is empty"),
        ("library: liba.so\nprefix: A\njob: {custom1: {i32: 1}}", "expected text"),
        ("library: liba.so\nprefix: A\njob: {custom1: {f64: .nan}}", "`custom1.f64` is not a finite number"),
        (
            "library: liba.so\nprefix: A\nsession: {custom2: {f64: -.inf}}",
            "`custom2.f64` is not a finite number",
        ),
        ("library: liba.so\nprefix: A\njob: {custom1: {u64: 18446744073709551616}}", "as u128"),
        ("library: liba.so\nprefix: A\njob: {custom1: {u64: -1}}", "expected text"),
        ("library: liba.so\nprefix: A\njob: {custom1: {u64: 1.5}}", "expected text"),
        ("library: liba.so\nprefix: A\nsession: {token_env: NO_TEXT}", "is not UTF-8 text"),
        (
            "library: liba.so\nprefix: A\nsession: {token_env: EMPTY}",
            "`session.token_env` is EMPTY, which is empty",
        ),
        ("library: liba.so\nprefix: A\nsession: {token_file: large}", "has more than 65536 bytes"),
        ("library: liba.so\nprefix: A\nsession: {token_file: empty}", "empty, which is empty"),
        ("library: liba.so\nprefix: A\nsession: {base_url: \"a\\0b\"}", "`base_url` contains a NUL"),
        ("library: liba.so\nprefix: A\nsession: {token_env: NO_SUCH}", "`session.token_env` is NO_SUCH"),
        ("library: liba.so\nprefix: A\nsession: {token_file: no-such}", "no-such: No such file"),
        (
            "library: liba.so\nprefix: A\nsession: {token: hush, token_env: LAB_TOKEN}",
            "more than one of token, token_env and token_file",
        ),
    ] {
        let error = settings(dir.path(), yaml).unwrap_err();
        assert!(error.contains(says), "{yaml}: {error}");
        assert!(!error.contains("hush") && !error.contains("s3cret"), "{error}");
    }
}

#[test]
fn secrets_are_marked_in_the_schema() {
    let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
    let session = &schema["properties"]["session"]["properties"];
    let secret = |key: &str| session[key]["writeOnly"] == true;
    assert!(secret("token") && secret("password") && !secret("base_url"), "{session}");
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["properties"]["job"]["additionalProperties"], false);
}

#[test]
fn the_device_configs_of_the_project_are_understood() {
    for text in
        [include_str!("../../../device-configs/ddsim.yaml"), include_str!("../../../device-configs/iqm.yaml")]
    {
        let keys: String = text
            .lines()
            .filter(|line| !line.starts_with("executor_factory"))
            .map(|l| format!("{l}\n"))
            .collect();
        let config: Config = serde_yaml::from_str(&keys).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(config.library.extension().is_some_and(|extension| extension == "so"));
    }
}
