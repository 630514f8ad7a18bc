//! Becoming a connected site: which credentials are shown, what is stored, in which order.
//!
//! The one rule for tokens, [`reconnects`]: without a token, or with the very token that the stored
//! credentials were got for, the host reconnects with what is held; any other token provisions anew and what
//! is stored doesn't count. Order: [`ask`] shows the credentials, applies the bundle in memory and checks the
//! key; [`AcceptedConnect::store`] stores (key first) and only then hands out the [`Registration`]. What lies between is the
//! caller's: the tunnel. Whatever fails before storing leaves the files as they were.

use std::path::PathBuf;

use super::bundle::{self, AppliedBundle, BundleError, CurrentValues};
use super::connect::{self, ConnectError, PresentedCredential};
use super::fingerprint::{self, FingerprintError};
use super::http::{Bearer, HttpClient, HttpError};
use super::jwt::{KeyError, PrivateKey, Signer};
use crate::config::settings::{CloudSettings, Identity, Settings, VpnSettings};
use crate::error::{Explain, exit};
use crate::model::Secret;
use crate::state::credentials::{self, CredentialsError, StoredConfig, StoredCredentials};

/// A host that the cloud has accepted.
#[derive(Debug, Clone)]
pub struct Registration {
    pub identity: Identity,
    pub cloud: CloudSettings,
    pub vpn: VpnSettings,
    pub signer: Signer,
    /// Whether a one-time token was redeemed for it just now.
    pub provisioned: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    #[error("there are no credentials for the cloud: neither a node token nor {0}")]
    NoCredentials(&'static str),
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the node token can't be sent")]
    Token(#[source] HttpError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Bundle(BundleError),
    #[error("the cloud sent a private key that can't be used")]
    NewKey(#[source] KeyError),
    #[error("the new credentials could not be stored")]
    Store(#[source] CredentialsError),
    /// An error after a one-time token had been accepted.
    #[error(transparent)]
    TokenSpent(Box<ProvisionError>),
}

impl Explain for ProvisionError {
    fn code(&self) -> &'static str {
        match self {
            ProvisionError::NoCredentials(_) => "no-credentials",
            ProvisionError::Fingerprint(e) => e.code(),
            ProvisionError::Key(e) | ProvisionError::NewKey(e) => e.code(),
            ProvisionError::Token(_) => "token-header",
            ProvisionError::Connect(e) => e.code(),
            ProvisionError::Bundle(e) => e.code(),
            ProvisionError::Store(e) => e.code(),
            ProvisionError::TokenSpent(e) => e.code(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ProvisionError::NoCredentials(_) => Some(
                "give the one-time node token that Coda shows for the QPU (--token or CODA_NODE_TOKEN), or \
                 set CODA_QPU_ID, CODA_JWT_PRIVATE_KEY and CODA_JWT_KEY_ID"
                    .into(),
            ),
            ProvisionError::Fingerprint(e) => e.hint(),
            ProvisionError::Key(e) => e.hint(),
            ProvisionError::NewKey(_) => BundleError::Missing("jwt_private_key").hint(),
            ProvisionError::Token(_) => Some("copy the token again; it is plain letters and digits".into()),
            ProvisionError::Connect(e) => e.hint(),
            ProvisionError::Bundle(e) => e.hint(),
            ProvisionError::Store(e) => e.hint(),
            ProvisionError::TokenSpent(e) => Some(with_token_notice(e.hint())),
        }
    }

    fn exit(&self) -> u8 {
        match self {
            ProvisionError::NoCredentials(_) | ProvisionError::Token(_) => exit::CONFIG,
            ProvisionError::Fingerprint(e) => e.exit(),
            ProvisionError::Key(e) => e.exit(),
            ProvisionError::Connect(e) => e.exit(),
            ProvisionError::Bundle(_) | ProvisionError::NewKey(_) => exit::CLOUD,
            ProvisionError::Store(e) => e.exit(),
            ProvisionError::TokenSpent(e) => e.exit(),
        }
    }
}

/// An error of any stage after a one-time token had been accepted. Its hint says that the token is used up.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TokenSpent<E: Explain>(pub E);

impl<E: Explain> Explain for TokenSpent<E> {
    fn code(&self) -> &'static str {
        self.0.code()
    }

    fn hint(&self) -> Option<String> {
        Some(with_token_notice(self.0.hint()))
    }

    fn exit(&self) -> u8 {
        self.0.exit()
    }
}

fn with_token_notice(hint: Option<String>) -> String {
    let renew = "get a new node token for the next try, because the node token is used up by this one";
    hint.map_or_else(|| renew.to_owned(), |hint| format!("{hint}; {renew}"))
}

/// Whether a start with this token reconnects with the stored credentials. The settings take stored values
/// into account exactly when it does.
pub fn reconnects(token: Option<&Secret>, stored: Option<&StoredCredentials>) -> bool {
    match (token, stored) {
        (None, _) => true,
        (Some(token), Some(stored)) => stored.usable() && stored.redeemed_by(token),
        (Some(_), None) => false,
    }
}

/// Whether a start with these settings redeems a one-time token.
pub fn redeems(settings: &Settings, stored: Option<&StoredCredentials>) -> bool {
    let token = settings.credentials.node_token.as_ref();
    token.is_some() && !reconnects(token, stored)
}

/// The cloud's answer, checked and not stored yet.
pub struct AcceptedConnect {
    applied: AppliedBundle,
    key: PrivateKey,
    dir: PathBuf,
    token: Option<Secret>,
}

/// Presents the credentials to the cloud. `settings` hold the stored values when [`reconnects`] says so;
/// `connectivity` is the executor's, `None` when it reports no topology.
///
/// # Errors
/// There are no credentials, the cloud refuses them or can't be reached, or its answer is not valid.
pub async fn request_credentials(
    client: &HttpClient,
    settings: &Settings,
    stored: Option<&StoredCredentials>,
    connectivity: Option<&[(u16, u16)]>,
) -> Result<AcceptedConnect, ProvisionError> {
    let dir = &settings.dirs.credentials;
    let given = &settings.credentials;
    let token = match &given.node_token {
        Some(token) if !reconnects(Some(token), stored) => Some(token),
        Some(_) => {
            tracing::info!(
                "this node token was redeemed before: reconnecting with the credentials stored in {}",
                dir.display()
            );
            None
        }
        None => None,
    };
    credentials::can_save(dir).map_err(ProvisionError::Store)?;
    let mut cloud = settings.cloud.clone();
    if cloud.machine_fingerprint.is_empty() {
        cloud.machine_fingerprint = fingerprint::of_this_machine(dir)?;
    }
    let (bearer, shown) = match token {
        Some(token) => {
            let stored = stored.is_some_and(StoredCredentials::usable);
            (Bearer::new(token).map_err(ProvisionError::Token)?, PresentedCredential::Token { stored })
        }
        None => (held_signer(settings)?.fresh()?, PresentedCredential::Key),
    };
    let body = connect::body(&cloud.machine_fingerprint, connectivity);
    let answer = connect::request(client, &cloud, &bearer, shown, body).await?;
    let held = CurrentValues {
        identity: &settings.identity,
        cloud: &cloud,
        vpn: &settings.vpn,
        private_key: given.jwt_private_key.as_ref(),
        key_id: given.jwt_key_id.as_deref(),
    };
    match judge(&answer, held, token.is_some()) {
        Ok((applied, key)) => Ok(AcceptedConnect { applied, key, dir: dir.clone(), token: token.cloned() }),
        Err(error) if token.is_some() => Err(ProvisionError::TokenSpent(Box::new(error))),
        Err(error) => Err(error),
    }
}

/// Applies the answer in memory and checks what is in it.
fn judge(
    answer: &[u8],
    held: CurrentValues<'_>,
    redeemed: bool,
) -> Result<(AppliedBundle, PrivateKey), ProvisionError> {
    let applied = bundle::apply(answer, held).map_err(ProvisionError::Bundle)?;
    for warning in &applied.warnings {
        tracing::warn!("{warning}");
    }
    // A reconnect whose answer has no VPN block goes on with the stored profile.
    if redeemed && applied.vpn.required && applied.profile.is_none() {
        return Err(ProvisionError::Bundle(BundleError::NoProfile));
    }
    let key = PrivateKey::parse(&applied.private_key).map_err(ProvisionError::NewKey)?;
    Ok((applied, key))
}

impl AcceptedConnect {
    /// The VPN profile as it came.
    pub fn profile(&self) -> Option<&Secret> {
        self.applied.profile.as_ref()
    }

    pub fn vpn(&self) -> &VpnSettings {
        &self.applied.vpn
    }

    /// Whether a one-time token was redeemed for it.
    pub fn redeemed(&self) -> bool {
        self.token.is_some()
    }

    /// Stores it, key first.
    ///
    /// # Errors
    /// A file of the credentials can't be written.
    pub fn store(self) -> Result<Registration, ProvisionError> {
        let AcceptedConnect { applied, key, dir, token } = self;
        credentials::save(&dir, &to_store(&applied), key.pem(), token.as_ref()).map_err(|e| {
            let error = ProvisionError::Store(e);
            if token.is_some() { ProvisionError::TokenSpent(Box::new(error)) } else { error }
        })?;
        let AppliedBundle { identity, cloud, vpn, key_id, .. } = applied;
        let signer = Signer::new(key, &identity.qpu_id, Some(&key_id), cloud.jwt_reuse);
        Ok(Registration { identity, cloud, vpn, signer, provisioned: token.is_some() })
    }
}

fn held_signer(settings: &Settings) -> Result<Signer, ProvisionError> {
    let given = &settings.credentials;
    let Some(key) = &given.jwt_private_key else {
        return Err(ProvisionError::NoCredentials("a private key (stored or CODA_JWT_PRIVATE_KEY)"));
    };
    let Some(key_id) = given.jwt_key_id.as_deref().filter(|k| !k.is_empty()) else {
        return Err(ProvisionError::NoCredentials("the private key's id (stored or CODA_JWT_KEY_ID)"));
    };
    if settings.identity.qpu_id.is_empty() {
        return Err(ProvisionError::NoCredentials("the QPU's id (stored or CODA_QPU_ID)"));
    }
    let key = PrivateKey::parse(key)?;
    Ok(Signer::new(key, &settings.identity.qpu_id, Some(key_id), settings.cloud.jwt_reuse))
}

fn to_store(applied: &AppliedBundle) -> StoredConfig {
    let AppliedBundle { identity, cloud, vpn, .. } = applied;
    StoredConfig {
        qpu_id: Some(identity.qpu_id.clone()),
        qpu_display_name: Some(identity.qpu_display_name.clone()),
        native_gate_set: Some(identity.native_gate_set.clone()),
        num_qubits: Some(identity.num_qubits),
        jwt_key_id: Some(applied.key_id.clone()),
        jwt_private_key_path: None,
        redis_url: Some(identity.redis_url.clone()),
        webapp_url: Some(cloud.webapp_url.clone()),
        connect_path: Some(cloud.connect_path.clone()),
        heartbeat_path: Some(cloud.heartbeat_path.clone()),
        webhook_path: Some(cloud.webhook_path.clone()),
        vpn_required: Some(vpn.required),
        vpn_check_interval_sec: Some(vpn.check_interval.as_secs().max(1)),
        vpn_interface_hint: vpn.interface_hint.clone(),
        vpn_probe_targets: Some(vpn.probe_targets.clone()),
        node_auto_vpn: Some(vpn.auto),
        node_vpn_profile_path: Some(vpn.profile_path.clone()),
        node_machine_fingerprint: Some(cloud.machine_fingerprint.clone()),
    }
}

#[cfg(test)]
#[path = "provision_tests.rs"]
pub(crate) mod tests;
