//! Becoming a connected site behind its tunnel: the order of cloud, VPN and storing.
//!
//! Reconnecting: the stored tunnel first, for the cloud may only be reachable through it. Then the request.
//! What it answers is checked as a whole, the profile too, before anything is written; then the tunnel comes
//! up and the credentials are stored; when either fails, both are taken back. Last the preflight, which may
//! fail with everything stored: the next start reconnects.

use crate::cloud::http::HttpClient;
use crate::cloud::provision::{self, Accepted, Site, Spent};
use crate::config::settings::Settings;
use crate::error::{Explain, Failure};
use crate::state::credentials::StoredCredentials;
use crate::vpn::guard::Guard;
use crate::vpn::openvpn::Openvpn;
use crate::vpn::profile::{self, Checked};

/// Connects; returns the site and the guard of its tunnel, which has made its first check.
///
/// # Errors
/// Whatever keeps the host from being a site. A stored state is then as it was, unless only the preflight
/// failed.
pub async fn connect(
    client: &HttpClient,
    settings: &Settings,
    stored: Option<&StoredCredentials>,
    connectivity: Option<&[(u16, u16)]>,
    openvpn: &Openvpn,
) -> Result<(Site, Guard), Failure> {
    let redeems = provision::redeems(settings, stored);
    let vpn = &settings.vpn;
    // Without a required VPN the request needs no tunnel; a profile then comes with the answer.
    if !redeems && stored.is_some() && vpn.auto && vpn.required {
        openvpn.up_stored(vpn.interface_hint.clone()).await?;
    }
    let accepted = provision::ask(client, settings, stored, connectivity).await?;
    let site = enter(accepted, openvpn).await?;
    let guard = Guard::new(openvpn.clone(), client.clone(), &site.vpn, &site.cloud)?;
    guard.preflight().await?;
    Ok((site, guard))
}

/// Brings the tunnel up and stores: both or nothing.
async fn enter(accepted: Accepted, openvpn: &Openvpn) -> Result<Site, Failure> {
    let redeemed = accepted.redeemed();
    // From the wire to the parser.
    let profile = accepted.profile().map(|p| profile::check(p.expose().as_bytes())).transpose();
    let profile: Option<Checked> = profile.map_err(|e| spent(redeemed, e))?;
    let vpn = accepted.vpn();
    let tunnel = match profile {
        Some(profile) if vpn.auto => {
            let up = openvpn.up_with(profile, vpn.interface_hint.clone(), redeemed).await;
            Some(up.map_err(|e| spent(redeemed, e))?)
        }
        _ => None,
    };
    match (accepted.store(), tunnel) {
        (Ok(site), _) => Ok(site),
        (Err(error), tunnel) => {
            if let Some(tunnel) = tunnel
                && let Err(left) = openvpn.undo(tunnel).await
            {
                tracing::error!(error = Failure::from(left).line(), "the VPN could not be taken back");
            }
            Err(error.into())
        }
    }
}

fn spent<E: Explain>(redeemed: bool, error: E) -> Failure {
    if redeemed { Spent(error).into() } else { error.into() }
}

/// Stops the managed daemon; told, whatever else happens.
pub async fn leave(openvpn: &Openvpn) {
    if let Err(error) = openvpn.down().await {
        let failure = Failure::from(error);
        tracing::error!(error = failure.line(), hint = failure.hint, "the VPN could not be stopped");
    }
}

#[cfg(test)]
#[path = "site_tests.rs"]
mod tests;
