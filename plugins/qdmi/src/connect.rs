//! Opening a library and its session.
//!
//! Contract: one attempt; the host repeats it. Each refusal says which parameters were set, and never their values.

use std::rc::Rc;

use coda_plugin_abi::{Error, ErrorCode, HostServices, LogLevel, Stage};

use crate::abi::{
    self, Abi, Failure, INVALID_ARGUMENT, Library, OpenError, PERMISSION_DENIED, Session, device_property,
};
use crate::config::Settings;
use crate::manifest;

/// Opens the library and connects.
///
/// # Errors
/// What the library lacks or answered, for the operator.
pub fn connect(settings: &Settings, host: HostServices<'_>) -> Result<Session, Error> {
    let path = settings.library.display();
    let wrong =
        |code, what: String| Error::new(code, format!("{}: {what}", settings.config_file)).at(Stage::Create);
    manifest::check_loadable(&settings.library).map_err(|what| wrong(ErrorCode::Config, what))?;
    let library = Library::open(&settings.library, &settings.prefix).map_err(|error| match error {
        OpenError::Failed(failure) => wrong(ErrorCode::Hardware, format!("the library {path}: {failure}")),
        other => wrong(ErrorCode::Config, format!("the library {path} {other}")),
    })?;
    let session = Session::alloc(&library).map_err(|failure| wrong(code(&failure), failure.to_string()))?;
    for parameter in &settings.session {
        match session.set_parameter(parameter.item, &parameter.value) {
            Ok(()) => {}
            Err(failure) if failure.is_absence() && parameter.from_manifest => {
                let key = parameter.key;
                let note =
                    format!("the manifest sets {key}, which the library does not have; it is left out");
                host.log(LogLevel::Info, note);
            }
            Err(failure) if failure.is_absence() => {
                let what = format!("{failure}: it has no such parameter; remove it");
                return Err(wrong(ErrorCode::Config, what));
            }
            Err(failure) => return Err(wrong(ErrorCode::Config, format!("{failure}; correct its value"))),
        }
    }
    session
        .init()
        .map_err(|failure| refused(&failure, settings))
        .map_err(|(code, what)| wrong(code, what))?;
    check_version(&library, &session, host).map_err(|what| wrong(ErrorCode::Config, what))?;
    for call in library.take_warnings() {
        host.log(LogLevel::Warn, format_args!("the device library answered with a warning to {call}"));
    }
    Ok(session)
}

fn refused(failure: &Failure, settings: &Settings) -> (ErrorCode, String) {
    let keys: Vec<&str> = settings.session.iter().map(|parameter| parameter.key).collect();
    let set = match keys.as_slice() {
        [] => "`session` is empty".to_string(),
        keys => format!("set were {}", keys.join(", ")),
    };
    match failure.status() {
        Some(PERMISSION_DENIED) => {
            (ErrorCode::Config, format!("the device refused the credentials: {failure}; {set}; renew them"))
        }
        Some(INVALID_ARGUMENT) => (
            ErrorCode::Config,
            format!("the library wants other parameters: {failure}; {set}; correct `session`"),
        ),
        _ => (
            code(failure),
            format!("no connection to the device: {failure}; {set}; what the library printed is in the log"),
        ),
    }
}

/// The library's own statement of its interface, beside what its symbols say.
fn check_version(library: &Rc<Library>, session: &Session, host: HostServices<'_>) -> Result<(), String> {
    let stated = abi::optional(session.text(device_property::LIBRARY_VERSION)).map_err(|f| f.to_string())?;
    let by_symbols = library.abi();
    let Some(stated) = stated else { return Ok(()) };
    let mut parts = stated.split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        let note =
            format!("the library states its interface as {stated:?}; by its functions it is {by_symbols}");
        host.log(LogLevel::Warn, note);
        return Ok(());
    };
    let agrees = match by_symbols {
        Abi::V1_3 => minor < 4,
        Abi::V1_4 => minor >= 4,
    };
    if major == 1 && agrees {
        return Ok(());
    }
    Err(format!(
        "the library states interface {stated} (LIBRARYVERSION), and its functions are those of {by_symbols}; this plugin \
         knows 1.3 and 1.4: get another version of the library"
    ))
}

/// The code of a call that failed.
pub fn code(failure: &Failure) -> ErrorCode {
    match (failure.call, failure.status()) {
        _ if failure.is_absence() => ErrorCode::Unsupported,
        (_, Some(abi::OUT_OF_MEMORY)) => ErrorCode::Resources,
        (abi::SET_PROGRAM, Some(INVALID_ARGUMENT)) => ErrorCode::Unsupported,
        (_, Some(abi::TIMEOUT)) => ErrorCode::Timeout,
        _ => ErrorCode::Hardware,
    }
}
