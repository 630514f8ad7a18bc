//! Registering with the cloud behind the VPN tunnel: in which order cloud, VPN and credentials are dealt with.
//!
//! A reconnect brings the stored tunnel up first, because the cloud may be reachable through it only. Then the
//! request is sent. Its answer is checked as a whole, the VPN profile included, before anything is written. Then the
//! tunnel comes up and the credentials are stored; when either fails, both are undone. The preflight comes last and
//! may fail with everything stored: the next start reconnects.

use crate::cloud::http::HttpClient;
use crate::cloud::provision::{self, AcceptedConnect, Registration, TokenSpent};
use crate::config::settings::Settings;
use crate::error::{Explain, Failure};
use crate::state::credentials::StoredCredentials;
use crate::vpn::guard::Guard;
use crate::vpn::openvpn::Openvpn;
use crate::vpn::profile::{self, CheckedProfile};

/// Registers the host; returns the registration and the guard of its tunnel, which has made its first check.
///
/// # Errors
/// When the cloud refuses or can't be reached, the tunnel does not come up or the credentials can't be stored. The
/// stored state is then unchanged, unless only the preflight failed.
pub async fn connect(
    client: &HttpClient,
    settings: &Settings,
    stored: Option<&StoredCredentials>,
    connectivity: Option<&[(u16, u16)]>,
    openvpn: &Openvpn,
) -> Result<(Registration, Guard), Failure> {
    let redeems = provision::redeems(settings, stored);
    let vpn = &settings.vpn;
    // Without a required VPN the request needs no tunnel; a profile then comes with the answer.
    if !redeems && stored.is_some() && vpn.auto && vpn.required {
        openvpn.up_stored(vpn.interface_hint.clone()).await?;
    }
    let accepted = provision::request_credentials(client, settings, stored, connectivity).await?;
    let registration = enter(accepted, openvpn).await?;
    let guard = Guard::new(openvpn.clone(), client.clone(), &registration.vpn, &registration.cloud)?;
    guard.preflight().await?;
    Ok((registration, guard))
}

/// Brings the tunnel up and stores the credentials: both or neither.
async fn enter(accepted: AcceptedConnect, openvpn: &Openvpn) -> Result<Registration, Failure> {
    let redeemed = accepted.redeemed();
    let profile = accepted.profile().map(|p| profile::check(p.expose().as_bytes())).transpose();
    let profile: Option<CheckedProfile> = profile.map_err(|e| spent(redeemed, e))?;
    let vpn = accepted.vpn();
    let tunnel = match profile {
        Some(profile) if vpn.auto => {
            let up = openvpn.up_with(profile, vpn.interface_hint.clone(), redeemed).await;
            Some(up.map_err(|e| spent(redeemed, e))?)
        }
        _ => None,
    };
    match (accepted.store(), tunnel) {
        (Ok(registration), _) => Ok(registration),
        (Err(error), tunnel) => {
            if let Some(tunnel) = tunnel
                && let Err(left) = openvpn.undo(tunnel).await
            {
                tracing::error!(error = Failure::from(left).line(), "the VPN tunnel could not be undone");
            }
            Err(error.into())
        }
    }
}

fn spent<E: Explain>(redeemed: bool, error: E) -> Failure {
    if redeemed { TokenSpent(error).into() } else { error.into() }
}

/// Stops the managed OpenVPN daemon; a failure is logged.
pub async fn leave(openvpn: &Openvpn) {
    if let Err(error) = openvpn.down().await {
        let failure = Failure::from(error);
        tracing::error!(error = failure.line(), hint = failure.hint, "the VPN could not be stopped");
    }
}

#[cfg(test)]
#[path = "registration_tests.rs"]
mod tests;
