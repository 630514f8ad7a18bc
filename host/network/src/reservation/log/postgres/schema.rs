//! The tables in PostgreSQL, and how those of earlier versions are brought up to date.

use tokio_postgres::Client;

use super::server_message;
use crate::reservation::log::error::LogError;

/// The tables of version 1.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS coda_meta (version BIGINT NOT NULL);
    CREATE SEQUENCE IF NOT EXISTS coda_positions;
    CREATE TABLE IF NOT EXISTS coda_events (
        position BIGINT PRIMARY KEY,
        stream TEXT NOT NULL,
        seq BIGINT NOT NULL,
        at BIGINT NOT NULL,
        version BIGINT NOT NULL,
        body TEXT NOT NULL,
        sum TEXT NOT NULL,
        UNIQUE (stream, seq)
    );
    CREATE TABLE IF NOT EXISTS coda_keys (
        caller TEXT NOT NULL,
        key TEXT NOT NULL,
        stream TEXT NOT NULL,
        PRIMARY KEY (caller, key)
    );
    CREATE TABLE IF NOT EXISTS coda_open (stream TEXT PRIMARY KEY, until BIGINT NOT NULL);
    INSERT INTO coda_meta (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM coda_meta);
";
/// The statements that lead from each version to the next one.
const UPGRADES: [&str; 1] = [r#"
    CREATE TABLE coda_leases (
        peer_id TEXT PRIMARY KEY,
        token TEXT NOT NULL UNIQUE,
        holder TEXT NOT NULL,
        until TIMESTAMPTZ NOT NULL
    );
    ALTER TABLE coda_open ADD COLUMN position BIGINT;
    ALTER TABLE coda_open ADD COLUMN owner TEXT;
    ALTER TABLE coda_open ADD COLUMN is_cancelled BOOLEAN NOT NULL DEFAULT FALSE;
    UPDATE coda_open o SET
        position = (SELECT position FROM coda_events e WHERE e.stream = o.stream AND e.seq = 1),
        is_cancelled = EXISTS (
            SELECT 1 FROM coda_events e WHERE e.stream = o.stream AND e.body LIKE '{"kind":"cancelled",%')
    WHERE starts_with(o.stream, 'job/');
    CREATE INDEX coda_waiting ON coda_open (position) WHERE position IS NOT NULL AND owner IS NULL;
    CREATE INDEX coda_owners ON coda_open (owner) WHERE owner IS NOT NULL;
"#];
const SCHEMA_VERSION: i64 = 1 + UPGRADES.len() as i64;
/// Key of the advisory lock that serialises the creation of the schema. Any number that no other application uses.
const SCHEMA_LOCK: i64 = 0x636f_6461_686f_7374;

/// Makes the tables, or brings them up to date.
pub(super) async fn prepare(client: &mut Client, location: &str) -> Result<(), LogError> {
    let fail = |e: tokio_postgres::Error| LogError::Open {
        location: location.into(),
        failure: server_message(&e).into(),
    };
    let tx = client.transaction().await.map_err(fail)?;
    tx.execute("SELECT pg_advisory_xact_lock($1)", &[&SCHEMA_LOCK]).await.map_err(fail)?;
    tx.batch_execute(SCHEMA).await.map_err(fail)?;
    let found: i64 = tx.query_one("SELECT max(version) FROM coda_meta", &[]).await.map_err(fail)?.get(0);
    if found > SCHEMA_VERSION {
        return Err(LogError::Newer { location: location.into(), found });
    }
    // Each upgrade is behind the version that it leads from.
    for (from, upgrade) in (1..).zip(UPGRADES) {
        if found <= from {
            tx.batch_execute(upgrade).await.map_err(fail)?;
        }
    }
    if found < SCHEMA_VERSION {
        tx.execute("UPDATE coda_meta SET version = $1", &[&SCHEMA_VERSION]).await.map_err(fail)?;
    }
    tx.commit().await.map_err(fail)
}
