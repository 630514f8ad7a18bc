//! What changes for a site when its coda-node is replaced by coda-host: decided from how the running node was started and
//! what this host would use. Pure; each finding says what to set so that nothing changes.

use std::path::Path;

use super::Finding;
use crate::config::load::ProcessEnv;
use crate::config::source::SECRET_VARIABLES;
use crate::daemon::python_node::PythonNode;
use crate::executor::account::RunsAs;
use crate::executor::locate::Located;
use crate::state::credentials::{CONFIG_FILE, KEY_FILE};

const NAME: &str = "switch";
/// The system's variables that an executor may depend on.
const OF_THE_SYSTEM: [&str; 3] = ["PYTHONPATH", "LD_LIBRARY_PATH", "PYTHONHOME"];

/// What this host would use.
pub struct HostSide<'a> {
    pub env: &'a ProcessEnv,
    /// Where its credentials are.
    pub credentials: &'a Path,
    /// Absolute.
    pub device_config: Option<&'a Path>,
    /// `None` when no executor was found.
    pub located: Option<&'a Located>,
    pub runs_as: Option<RunsAs>,
    pub vpn_required: bool,
}

/// The differences, each with its remedy; one line that passes when there is none.
pub fn changes(node: &PythonNode, host: &HostSide<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if node.environment.is_empty() {
        findings.push(Finding::warn(
            NAME,
            format!("the environment of coda-node (process {}) can't be read", node.pid),
            "run this as root, or as its user, to compare its settings with those of coda-host",
        ));
    }
    findings.extend(variables(node, host.env));
    findings.extend(credentials(node, host.credentials));
    findings.extend(device_config(node, host));
    findings.extend(executor(node, host));
    findings.extend(rights(node, host));
    if host.vpn_required {
        findings.push(Finding::warn(
            NAME,
            "the executor is created before the VPN is up; under coda-node one that needs it worked at the second try",
            "if its creation needs the VPN, have it connect in its first run",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::pass(NAME, "coda-host uses what coda-node uses"));
    }
    findings
}

fn variables(node: &PythonNode, env: &ProcessEnv) -> Option<Finding> {
    let differs = |name: &String, value: &String| {
        let is_ours = name.to_ascii_uppercase().starts_with("CODA_");
        let here = if is_ours { env.ours(name) } else { env.plain(name) };
        // The token was for the first start alone; the path of the device config is compared on its own.
        let is_compared_here = is_ours && !["CODA_NODE_TOKEN", "CODA_DEVICE_CONFIG"].contains(&name.as_str());
        (is_compared_here || OF_THE_SYSTEM.contains(&name.as_str()))
            && !value.is_empty()
            && here != Some(value)
    };
    let texts: Vec<String> = node
        .environment
        .iter()
        .filter(|(name, value)| differs(name, value))
        .map(|(name, value)| match is_secret(name, value) {
            true => format!("{name} (a secret)"),
            false => format!("{name}={value}"),
        })
        .collect();
    let found = format!("coda-node was started with {}; here it differs or is not set", texts.join(", "));
    let todo = "set the same for coda-host, under systemd in /etc/coda-host/coda-host.env";
    (!texts.is_empty()).then(|| Finding::warn(NAME, found, todo))
}

/// Whether a value must not be shown: it may be of a vendor's own variable, or a URL with an account in it.
fn is_secret(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let words = ["TOKEN", "KEY", "SECRET", "PASSWORD"];
    SECRET_VARIABLES.contains(&name.as_str())
        || words.iter().any(|word| name.contains(word))
        || value.contains('@')
}

fn credentials(node: &PythonNode, dir: &Path) -> Option<Finding> {
    let theirs = &node.dir;
    let todo = format!(
        "install -m 600 {0}/{CONFIG_FILE} {0}/{KEY_FILE} {1}/, owned by the account of coda-host",
        theirs.display(),
        dir.display()
    );
    let found = format!(
        "the credentials of coda-node are in {}, those of coda-host in {}",
        theirs.display(),
        dir.display()
    );
    (theirs != dir && !dir.join(CONFIG_FILE).exists()).then(|| Finding::warn(NAME, found, todo))
}

fn device_config(node: &PythonNode, host: &HostSide<'_>) -> Option<Finding> {
    let cwd = node.cwd.as_deref()?;
    let theirs = match node.variable("CODA_DEVICE_CONFIG") {
        Some(path) => cwd.join(path),
        None => Some(cwd.join("site/device.yaml")).filter(|path| path.exists())?,
    };
    let is_same = |path: &Path| path == theirs || path.canonicalize().ok() == theirs.canonicalize().ok();
    if host.device_config.is_some_and(is_same) {
        return None;
    }
    let here = host.device_config.map_or("none".into(), |path| path.display().to_string());
    let found =
        format!("the device config of coda-node is {}, that of coda-host is {here}", theirs.display());
    Some(Finding::warn(NAME, found, format!("set CODA_DEVICE_CONFIG={}", theirs.display())))
}

fn executor(node: &PythonNode, host: &HostSide<'_>) -> Option<Finding> {
    match host.located {
        None => Some(Finding::warn(
            NAME,
            "no executor is found here; coda-node answers all zeros when it finds none, coda-host does not start",
            "set CODA_EXECUTOR_FACTORY, or executor_factory in the device config",
        )),
        Some(Located::Python(python)) => {
            let theirs = node.interpreter.as_deref()?;
            // The directory decides about the packages: `python`, `python3` and `python3.12` are one interpreter.
            if theirs.parent() == python.interpreter.path.parent() {
                return None;
            }
            let found = format!(
                "coda-node runs on {}, coda-host would use {} (by {})",
                theirs.display(),
                python.interpreter.path.display(),
                python.interpreter.chosen_by
            );
            Some(Finding::warn(NAME, found, format!("set CODA_EXECUTOR_PYTHON={}", theirs.display())))
        }
        Some(Located::Library(library)) => Some(Finding::warn(
            NAME,
            format!("coda-node runs Python code, coda-host would use the plugin {}", library.path.display()),
            "unless that is the purpose, set CODA_EXECUTOR_FACTORY to the factory that coda-node uses",
        )),
    }
}

fn rights(node: &PythonNode, host: &HostSide<'_>) -> Option<Finding> {
    let runs_as = host.runs_as.as_ref().filter(|_| node.uid == Some(0))?;
    let who = match runs_as {
        RunsAs::Account(account) if account.uid == 0 => return None,
        RunsAs::Account(account) => format!("as {}", account.name),
        RunsAs::Host if !runs_as.is_root() => "without root's rights".into(),
        RunsAs::Host | RunsAs::Root => "as root without its capabilities".into(),
    };
    Some(Finding::warn(
        NAME,
        format!("coda-node runs the executor with all rights of root, coda-host runs it {who}"),
        "if it opens devices, give the account the group that may, or set CODA_EXECUTOR_USER=root and \
         CODA_EXECUTOR_CAPABILITIES to those that it needs",
    ))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::executor::locate::{FactorySource, LocatedPython};
    use crate::executor::python::interpreter::{Interpreter, InterpreterSource};

    fn node(environment: &[(&str, &str)]) -> PythonNode {
        PythonNode {
            pid: 7,
            dir: "/tmp".into(),
            uid: Some(1000),
            cwd: Some("/srv/lab".into()),
            interpreter: Some("/opt/acme/bin/python3".into()),
            environment: environment.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        }
    }

    fn located(path: &str) -> Located {
        Located::Python(LocatedPython {
            factory: Some("acme:create".into()),
            source: FactorySource::Environment,
            interpreter: Interpreter { path: path.into(), chosen_by: InterpreterSource::SearchPath },
        })
    }

    #[test]
    fn what_would_change_is_told_with_its_remedy_and_nothing_else_is() {
        let same = [("CODA_DEVICE_CONFIG", "device.yaml"), ("CODA_PORT", "9000"), ("PATH", "/x")];
        let env = |variables: &[(&str, &str)]| {
            ProcessEnv::new(variables.iter().map(|(k, v)| ((*k).into(), (*v).into())), "/".into())
        };
        let python = located("/opt/acme/bin/python");
        let says = |node: &PythonNode, host: &HostSide<'_>| {
            let lines = changes(node, host).into_iter();
            let lines: Vec<String> =
                lines.map(|f| format!("{}: {}", f.found, f.todo.unwrap_or_default())).collect();
            lines.join("\n")
        };
        let config = PathBuf::from("/srv/lab/device.yaml");
        let ours = env(&same[1..]);
        let base = || HostSide {
            env: &ours,
            credentials: Path::new("/tmp"),
            device_config: Some(&config),
            located: Some(&python),
            runs_as: Some(RunsAs::Host),
            vpn_required: false,
        };
        assert!(says(&node(&same), &base()).contains("coda-host uses what coda-node uses"));

        let told = says(
            &node(&[
                ("CODA_PORT", "1"),
                ("coda_redis_url", "redis://u:pw@h"),
                ("PYTHONPATH", "/p"),
                ("CODA_LAB_PASSWORD", "hush"),
                ("CODA_WEBAPP_URL", "https://u:pw@h"),
            ]),
            &base(),
        );
        for part in ["CODA_PORT=1", "coda_redis_url (a secret)", "PYTHONPATH=/p", "coda-host.env"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("pw@") && !told.contains("hush"), "{told}");
        let cases: [(HostSide<'_>, &str); 6] = [
            (HostSide { credentials: Path::new("/nowhere"), ..base() }, "install -m 600 /tmp/coda.config"),
            (HostSide { device_config: None, ..base() }, "set CODA_DEVICE_CONFIG=/srv/lab/device.yaml"),
            (HostSide { located: None, ..base() }, "all zeros"),
            (
                HostSide { located: Some(&located("/usr/bin/python3")), ..base() },
                "CODA_EXECUTOR_PYTHON=/opt/acme",
            ),
            (HostSide { vpn_required: true, ..base() }, "in its first run"),
            (HostSide { runs_as: Some(RunsAs::Root), ..base() }, "coda-host uses what coda-node uses"),
        ];
        for (host, part) in cases {
            let told = says(&node(&same), &host);
            assert!(told.contains(part) && told.lines().count() == 1, "{part}: {told}");
        }
        let roots = PythonNode { uid: Some(0), ..node(&same) };
        let told = says(&roots, &HostSide { runs_as: Some(RunsAs::Root), ..base() });
        assert!(told.contains("as root without its capabilities"), "{told}");
        let hidden = PythonNode { environment: [].into(), cwd: None, interpreter: None, ..roots };
        assert!(says(&hidden, &base()).contains("can't be read"));
    }
}
