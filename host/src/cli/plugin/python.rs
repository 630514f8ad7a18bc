//! `coda-host plugin inspect MODULE:ATTRIBUTE`: what an interpreter has of a Python executor, without creating it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::app;
use crate::cli::device_view::{PythonView, line};
use crate::config::load::ProcessEnv;
use crate::error::Failure;
use crate::executor::inspect_python;
use crate::executor::locate::Located;
use crate::sys::Dispositions;

/// The factory that an argument names; `None` when it is a file.
pub fn factory(argument: &Path) -> Option<&str> {
    let text = argument.to_str().filter(|text| text.contains(':') && !text.contains('/'))?;
    (!argument.exists()).then_some(text)
}

/// Asks the interpreter; the lines for a terminal, or JSON.
///
/// # Errors
/// When no interpreter is found, or it has not what the executor needs.
pub fn inspect(
    factory: &str,
    interpreter: Option<String>,
    env: &ProcessEnv,
    json: bool,
) -> Result<String, Failure> {
    let mut flags = HashMap::from([("CODA_EXECUTOR_FACTORY", factory.to_string())]);
    flags.extend(interpreter.map(|path| ("CODA_EXECUTOR_PYTHON", path)));
    let prepared = app::prepare(env, flags)?;
    let located = match app::locate_plugin(&prepared.settings, &prepared.device, env)? {
        Located::Python(python) => python,
        Located::Library(library) => return super::inspect(library.path, json),
    };
    let dispositions = Arc::new(Dispositions::capture());
    let request = Located::Python(located.clone());
    let request = app::executor_request(&prepared.settings, &prepared.device, request, dispositions)?;
    let facts = inspect_python(&located, &request, true)?;
    let view = PythonView::new(&facts, &located.interpreter);
    let path = located.interpreter.path.display().to_string();
    let hooks = facts.hooks.clone().unwrap_or_default();
    if json {
        let mut value = serde_json::json!(view);
        value["interpreter"] = path.into();
        value["hooks"] = hooks.into();
        return Ok(format!("{value}\n"));
    }
    Ok([view.lines(), line("interpreter", &path), line("hooks", &hooks)].concat())
}
