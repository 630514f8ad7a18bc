//! `coda-host plugin new`: creates the project of a plugin that builds offline against the SDK and passes its tests.
//!
//! The sources are those of the examples under the new name, so the tests of the examples cover the generated code.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::python_names;
use crate::cli::terminal::Terminal;
use crate::config::load::ProcessEnv;
use crate::error::{Explain, Failure, exit};
use crate::executor::python::carried;

macro_rules! example {
    ($path:literal) => {
        include_str!(concat!("../../../../plugins/", $path))
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    Rust,
    C,
    Cpp,
    Python,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host plugin new acme-qpu --lang rust
  cd acme-qpu && cargo test && cargo build --release
  coda-host plugin check target/release/libacme_qpu.so --device device.yaml

  coda-host plugin new acme-qpu --lang cpp && make -C acme-qpu check

  coda-host plugin new acme-qpu --lang python
  cd acme-qpu && python3 -m pytest && coda-host plugin check --device device.yaml")]
pub struct Args {
    /// The plugin's name: small letters, digits and dashes
    #[arg(value_name = "NAME")]
    name: String,
    /// The language
    #[arg(long, value_enum)]
    lang: Language,
    /// The SDK, which Python does without (CODA_SDK; share/coda-host/sdk next to this program, if it exists)
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    sdk: Option<PathBuf>,
}

/// A file of the project: its path and what is in it.
type Content = (Cow<'static, str>, String);

/// Why no project was created.
#[derive(Debug, thiserror::Error)]
pub enum PluginNewError {
    #[error("'{0}' can't be a plugin's name")]
    Name(String),
    #[error("'{name}' can't be the name of a project in Python: it {why}")]
    PythonName { name: String, why: &'static str },
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    #[error("{} can't be written", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the SDK is not installed")]
    NoSdk,
    #[error("{} holds no SDK", .0.display())]
    NotSdk(PathBuf),
}

impl Explain for PluginNewError {
    fn code(&self) -> &'static str {
        "plugin-new"
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            PluginNewError::Name(_) => "use small letters, digits and dashes, and a letter first".into(),
            PluginNewError::PythonName { name, .. } => format!("choose another name, such as {name}-qpu"),
            PluginNewError::Exists(_) => "choose another name, or remove it".into(),
            PluginNewError::Write { .. } => "check space and permissions".into(),
            PluginNewError::NoSdk | PluginNewError::NotSdk(_) => {
                "run 'make install' (or 'make sdk' and --sdk target/sdk) in coda-host's source".into()
            }
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

pub fn run(args: &Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !args.name.starts_with(|c: char| c.is_ascii_lowercase())
        || !args.name.chars().all(good)
        || args.name.len() > 48
    {
        return Err(PluginNewError::Name(args.name.clone()).into());
    }
    if args.lang == Language::Python
        && let Some(why) = python_names::conflict(&args.name.replace('-', "_"))
    {
        return Err(PluginNewError::PythonName { name: args.name.clone(), why }.into());
    }
    let dir = env.cwd.join(&args.name);
    if dir.exists() {
        return Err(PluginNewError::Exists(dir).into());
    }
    let files = match args.lang {
        Language::Rust => rust(&args.name, &sdk(args, env)?),
        Language::C => foreign(&args.name, &sdk(args, env)?, "c"),
        Language::Cpp => foreign(&args.name, &sdk(args, env)?, "cpp"),
        Language::Python => python(&args.name),
    };
    for (path, content) in files {
        let path = dir.join(path.as_ref());
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&path, content));
        written.map_err(|source| PluginNewError::Write { path, source })?;
    }
    let mut out = Terminal::new(env);
    let (build, library) = match args.lang {
        Language::Rust => (
            "cargo test && cargo build --release",
            format!("target/release/lib{}.so ", args.name.replace('-', "_")),
        ),
        Language::C | Language::Cpp => ("make", format!("lib{}.so ", args.name)),
        // The executor that device.yaml names.
        Language::Python => ("python3 -m pytest", String::new()),
    };
    out.line(&format!("created {}; next:", args.name))?;
    out.line(&format!("  cd {} && {build}", args.name))?;
    out.line(&format!("  coda-host plugin check {library}--device device.yaml"))?;
    Ok(ExitCode::SUCCESS)
}

fn sdk(args: &Args, env: &ProcessEnv) -> Result<PathBuf, PluginNewError> {
    let named = args.sdk.clone().or_else(|| env.ours("CODA_SDK").map(PathBuf::from)).map(|p| env.cwd.join(p));
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.parent()?.join("share/coda-host/sdk")));
    let usual =
        [beside, Some("/usr/share/coda-host/sdk".into()), Some("/usr/local/share/coda-host/sdk".into())];
    let is_sdk = |p: &PathBuf| p.join("include/coda_executor.h").is_file();
    let found = match &named {
        Some(named) => Some(named.clone()).filter(is_sdk),
        None => usual.into_iter().flatten().find(is_sdk),
    };
    found.ok_or(named.map_or(PluginNewError::NoSdk, PluginNewError::NotSdk))
}

/// The project of an executor in Python code, with a copy of the module that the host brings: for tests and editors.
fn python(name: &str) -> Vec<Content> {
    let module = name.replace('-', "_");
    let renamed = |text: &str| {
        text.replace("acme_example", &module).replace("acme-example", name).replace("Acme", &pascal(name))
    };
    let sources = [
        ("__init__.py", example!("example-python/acme_example/__init__.py")),
        ("executor.py", example!("example-python/acme_example/executor.py")),
        ("executor_factory.py", example!("example-python/acme_example/executor_factory.py")),
        ("instrument.py", example!("example-python/acme_example/instrument.py")),
    ];
    let mut files: Vec<Content> =
        sources.iter().map(|(file, text)| (format!("{module}/{file}").into(), renamed(text))).collect();
    let others = [
        ("device.yaml", example!("example-python/device.yaml")),
        ("pyproject.toml", example!("example-python/pyproject.toml")),
        ("README.md", example!("example-python/README.md")),
        ("tests/test_executor.py", example!("example-python/tests/test_executor.py")),
    ];
    files.extend(others.iter().map(|(file, text)| ((*file).into(), renamed(text))));
    files.push(("tests/coda_executor.py".into(), carried::modules()["coda_executor"].into()));
    files.push((".gitignore".into(), "__pycache__/\n".into()));
    files
}

/// A plugin's name in the form of a type: `AcmeQpu` for `acme-qpu`.
fn pascal(name: &str) -> String {
    let part = |p: &str| p[..1].to_ascii_uppercase() + &p[1..];
    name.split('-').filter(|p| !p.is_empty()).map(part).collect()
}

fn common(name: &str, lang: &str, library: &str, build: &str) -> Vec<Content> {
    let config = format!(
        "# The device config of {name}. The first key is coda-host's, the others are the plugin's.\n\
         executor_factory: ./{library}\nhost: 127.0.0.1\nport: 5555\nshot_us: 200\n"
    );
    let readme = format!(
        "# {name}\n\nA plugin for coda-host in {lang}: drives one QPU. As generated it simulates up to ten qubits; replace \
         what stands for the hardware\nby your control stack, and set the kind to hardware.\n\n\
         ```\n{build}\ncoda-host plugin check {library} --device device.yaml          # every case, each in its own process\n\
         coda-host run circuit.json --device device.yaml --shots 1000   # one circuit\n\
         coda-host dev --device device.yaml --demo                      # a local Coda sandbox\n```\n\n\
         The interface's reference, and a tutorial: docs/plugins.md of coda-host.\n"
    );
    let ci = format!(
        "# Builds and checks the plugin; needs coda-host with its SDK on the runner.\nname: ci\non: [push, pull_request]\n\
         jobs:\n  plugin:\n    runs-on: ubuntu-latest\n    steps:\n      - uses: actions/checkout@v4\n      \
         - run: {build}\n      - run: coda-host plugin check {library} --device device.yaml --junit results.xml\n"
    );
    vec![
        ("device.yaml".into(), config),
        ("README.md".into(), readme),
        (".github/workflows/ci.yml".into(), ci),
    ]
}

fn rust(name: &str, sdk: &Path) -> Vec<Content> {
    let (lib, sdk) = (name.replace('-', "_"), sdk.display());
    let renamed = |text: &str| {
        text.replace("libcoda_example_rust.so", &format!("lib{lib}.so"))
            .replace("coda_example_rust", &lib)
            .replace("acme-example", name)
            .replace(" The same device in C and C++: `example-c`, `example-cpp`.", "")
            .replace(
                "//! Example of a vendor's plugin: the control stack of an imaginary \"Acme\" device",
                "//! The plugin: the control stack of a device",
            )
            .replace("Copy it, replace `device`", "Replace `device`")
            .replace("\"Acme\"", &format!("\"{}\"", pascal(name)))
            .replace("Acme", &pascal(name))
    };
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\n\
         [lib]\nname = \"{lib}\"\ncrate-type = [\"cdylib\", \"rlib\"]\n\n\
         [dependencies]\ncoda-plugin-abi = {{ path = \"{sdk}/coda-plugin-abi\" }}\nschemars = \"1\"\n\
         serde = {{ version = \"1\", features = [\"derive\"] }}\n\n\
         [dev-dependencies]\ncoda-plugin-abi = {{ path = \"{sdk}/coda-plugin-abi\", features = [\"conformance\"] }}\n\n\
         # A panic must unwind, so that it becomes an error of its job.\n[profile.release]\npanic = \"unwind\"\n\n[workspace]\n"
    );
    let config = format!(
        "# Builds without a network, against the crates that come with the SDK.\n[source.crates-io]\nreplace-with = \"coda-sdk\"\n\n\
         [source.coda-sdk]\ndirectory = \"{sdk}/vendor\"\n\n[net]\noffline = true\n"
    );
    let library = format!("target/release/lib{lib}.so");
    let mut files = common(name, "Rust", &library, "cargo test && cargo build --release");
    files.extend([
        ("Cargo.toml".into(), manifest),
        (".cargo/config.toml".into(), config),
        (".gitignore".into(), "/target\n/results.xml\n".into()),
        ("src/lib.rs".into(), renamed(example!("example-rust/src/lib.rs"))),
        ("src/device.rs".into(), example!("example-rust/src/device.rs").into()),
        ("tests/example.rs".into(), renamed(example!("example-rust/tests/example.rs"))),
    ]);
    files
}

fn foreign(name: &str, sdk: &Path, ending: &'static str) -> Vec<Content> {
    let (library, sdk) = (format!("lib{name}.so"), sdk.display());
    let renamed = |text: &str| {
        text.replace("acme-example-cpp", name)
            .replace("acme-example-c", name)
            .replace("acme-example", name)
            .replace("../example-c/toy_device.h", "toy_device.h")
            .replace("libacme.so", &library)
            .replace(" The same device in Rust and C++:\n * example-rust, example-cpp.", "")
            .replace("\"Acme\"", &format!("\"{}\"", pascal(name)))
    };
    let (lang, compiler, standard, source, text) = match ending {
        "c" => ("C", "$(CC)", "-std=c99", "plugin.c", renamed(example!("example-c/acme.c"))),
        _ => ("C++", "$(CXX)", "-std=c++17", "plugin.cpp", renamed(example!("example-cpp/acme.cpp"))),
    };
    let makefile = format!(
        "# Builds the plugin against coda-host's SDK; `make check` has coda-host check it.\nSDK ?= {sdk}\n\
         CFLAGS ?= -O2 -g -Wall -Wextra\nCXXFLAGS ?= $(CFLAGS)\n\n{library}: {source} toy_device.h\n\
         \t{compiler} {standard} $({}) -shared -fPIC -fvisibility=hidden -I$(SDK)/include -o $@ {source} -lm -lpthread\n\n\
         .PHONY: check clean\ncheck: {library}\n\tcoda-host plugin check {library} --device device.yaml\n\nclean:\n\trm -f {library}\n",
        if ending == "c" { "CFLAGS" } else { "CXXFLAGS" }
    );
    let mut files = common(name, lang, &library, "make");
    files.extend([
        ("Makefile".into(), makefile),
        (".gitignore".into(), "*.so\n/results.xml\n".into()),
        (source.into(), text),
        ("toy_device.h".into(), example!("example-c/toy_device.h").into()),
    ]);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_example_is_left_in_a_project() {
        let sdk = Path::new("/sdk");
        for files in [rust("my-qpu", sdk), foreign("my-qpu", sdk, "c"), foreign("my-qpu", sdk, "cpp")] {
            assert!(files.len() >= 7);
            for (path, content) in files {
                let left = ["coda_example", "acme-example", "\"Acme\"", "example-c", "example-rust"];
                let found: Vec<_> = left.iter().filter(|l| content.contains(**l)).collect();
                assert!(found.is_empty(), "{path} still has {found:?}");
            }
        }
        let python = python("my-qpu");
        assert!(python.iter().any(|(path, _)| path == "my_qpu/executor_factory.py"));
        for (path, content) in python.iter().filter(|(path, _)| path != "tests/coda_executor.py") {
            let left = ["acme_example", "acme-example", "Acme"];
            let found: Vec<_> = left.iter().filter(|l| content.contains(**l)).collect();
            assert!(found.is_empty(), "{path} still has {found:?}");
        }
        assert_eq!(pascal("my-qpu-2"), "MyQpu2");
    }
}
