//! `rediss://` with a private CA, an account and a database, as a bundle may name it.

use std::net::TcpListener;
use std::path::Path;

use coda_host_tests::{Plan, TestHost, eventually_some, example};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use redis::cmd;

/// A CA and a server certificate for 127.0.0.1, as PEM files.
fn certificates(dir: &Path) {
    let mut ca = CertificateParams::new(Vec::<String>::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().signed_by(&key, &ca).unwrap();
    for (name, pem) in
        [("ca.pem", ca.pem()), ("server.pem", server.pem()), ("server.key", key.serialize_pem())]
    {
        std::fs::write(dir.join(name), pem).unwrap();
    }
}

/// A Redis that also speaks TLS, with an account; returns the URL that the bundle names.
async fn lay(host: &TestHost, dir: &Path) -> String {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).unwrap().port();
    let path = |name: &str| dir.join(name).display().to_string();
    for (key, value) in [
        ("tls-cert-file", path("server.pem")),
        ("tls-key-file", path("server.key")),
        ("tls-ca-cert-file", path("ca.pem")),
        ("tls-auth-clients", "no".into()),
        ("tls-port", port.to_string()),
    ] {
        host.redis::<()>(cmd("CONFIG").arg("SET").arg(key).arg(value)).await;
    }
    host.redis::<()>(cmd("ACL").arg("SETUSER").arg("node").arg("on").arg(">p@ss#w").arg("~*").arg("+@all"))
        .await;
    let url = format!("rediss://node:p%40ss%23w@127.0.0.1:{port}/2");
    host.cloud.edit_bundle({
        let url = url.clone();
        move |bundle| bundle["redis_url"] = url.as_str().into()
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_url_with_account_and_database_is_used_as_it_says() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let mut host = Plan::simulator("")
        .env("CODA_CA_FILE", dir.path().join("ca.pem").display().to_string())
        .prepare()
        .await;
    lay(&host, dir.path()).await;
    host.start().await;
    let job = host.job("J1", &example(), 100);
    let mut add = redis::pipe();
    add.cmd("SELECT").arg(2).ignore();
    let xadd = add.cmd("XADD").arg(host.stream()).arg("*");
    for (name, value) in &job.fields {
        xadd.arg(name).arg(value.as_slice());
    }
    let client = redis::Client::open(host.redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    add.query_async::<()>(&mut connection).await.unwrap();
    assert_eq!(host.delivered("J1").await["counts"]["10"], 100);
    assert!(!host.log().contains("p@ss#w") && !host.log().contains("p%40ss"), "no password in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_authority_is_a_clear_error_and_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let mut host = Plan::simulator("").prepare().await;
    lay(&host, dir.path()).await;
    host.launch();
    let says = "no connection to Redis";
    eventually_some("the error is logged twice", async || {
        (host.log().matches(says).count() >= 2).then_some(())
    })
    .await;
    let log = host.log();
    assert!(log.contains("certificate"), "it says that the certificate is the trouble: {log}");
    assert!(!log.contains("p@ss#w") && !log.contains("p%40ss") && !log.contains("panicked"), "{log}");
    let (status, ready) = host.ready().await;
    assert_eq!((status, &ready["redis_healthy"]), (503, &false.into()));
}
