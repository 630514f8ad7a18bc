//! The queue of jobs in PostgreSQL, which coordinators share, and their leases by the database's clock.
//!
//! A job is assigned by one statement that skips the rows that others are just taking. An append of its owner locks the
//! job's row until it is committed, so the owner can't change in between.

use std::time::Duration;

use tokio_postgres::{Client, Transaction};

use super::{lock, stream_named};
use crate::reservation::journal::JobRefusal;
use crate::reservation::lease::{self, LeaseAnswer, LeaseClaimant, StoredLease};
use crate::reservation::log::error::AppendError;
use crate::reservation::log::queue::{AssignedJob, JobSelection, QueueChange, TakenJob};
use crate::reservation::log::request::QueueRule;
use crate::reservation::stream::StreamId;

/// The channel on which coordinators tell each other what has changed.
pub(super) const CHANNEL: &str = "coda_queue";
/// A payload that says that a job waits. Any other one is the id of a job that is cancelled.
const WAITING: &str = "";
/// Leases that ended so long ago are removed.
const KEPT_SECONDS: f64 = 86_400.0;

/// What a notification on the channel says.
pub(super) fn change(payload: &str) -> QueueChange {
    match payload {
        WAITING => QueueChange::Waiting,
        job_id => QueueChange::Cancelled(job_id.into()),
    }
}

async fn notify(tx: &Transaction<'_>, payload: &str) -> Result<(), tokio_postgres::Error> {
    tx.execute("SELECT pg_notify($1, $2)", &[&CHANNEL, &payload]).await.map(|_| ())
}

/// What the queue says about an append; checked before it, in the same transaction.
pub(super) async fn check(
    tx: &Transaction<'_>,
    stream: &str,
    rule: &QueueRule,
) -> Result<Result<(), AppendError>, tokio_postgres::Error> {
    match rule {
        QueueRule::Owned { token, kind } => {
            let sql = "SELECT owner FROM coda_open WHERE stream = $1 FOR NO KEY UPDATE";
            let owner: Option<String> = tx.query_opt(sql, &[&stream]).await?.and_then(|row| row.get(0));
            let is_own = owner.is_some_and(|owner| owner == *token);
            Ok(if is_own { Ok(()) } else { Err(JobRefusal::NotOwner(kind).into()) })
        }
        QueueRule::Enter { owner: None, most_waiting } => {
            let waiting = count(&tx.query_one(WAITING_COUNT, &[]).await?);
            Ok(if waiting < *most_waiting { Ok(()) } else { Err(AppendError::QueueFull(waiting)) })
        }
        QueueRule::Enter { owner: Some(_), .. } | QueueRule::Open { .. } | QueueRule::None => Ok(Ok(())),
    }
}

/// Brings the table of open streams up to date with an append, whose first row is at `position`.
pub(super) async fn update(
    tx: &Transaction<'_>,
    stream: &StreamId,
    rule: &QueueRule,
    open_until: Option<i64>,
    position: i64,
) -> Result<(), tokio_postgres::Error> {
    let name = stream.to_string();
    let Some(until) = open_until else {
        return tx.execute("DELETE FROM coda_open WHERE stream = $1", &[&name]).await.map(|_| ());
    };
    match rule {
        QueueRule::None => {
            let sql = "INSERT INTO coda_open (stream, until) VALUES ($1, $2)
                       ON CONFLICT (stream) DO UPDATE SET until = $2";
            tx.execute(sql, &[&name, &until]).await?;
        }
        QueueRule::Enter { owner, .. } => {
            let sql = "INSERT INTO coda_open (stream, until, position, owner) VALUES ($1, $2, $3, $4)";
            tx.execute(sql, &[&name, &until, &position, owner]).await?;
            if owner.is_none() {
                notify(tx, WAITING).await?;
            }
        }
        QueueRule::Open { cancels: true } => {
            tx.execute("UPDATE coda_open SET is_cancelled = TRUE WHERE stream = $1", &[&name]).await?;
            notify(tx, &stream.id).await?;
        }
        QueueRule::Open { cancels: false } | QueueRule::Owned { .. } => {}
    }
    Ok(())
}

pub(super) async fn acquire(
    client: &mut Client,
    claimant: &LeaseClaimant,
) -> Result<LeaseAnswer, tokio_postgres::Error> {
    let LeaseClaimant { peer_id, token, holder, lease } = claimant;
    let tx = client.transaction().await?;
    lock(&tx, &format!("lease|{peer_id}")).await?;
    // The clock is read behind the lock, for which this may have waited.
    let sql = "SELECT token, holder, (extract(epoch FROM until) * 1000000)::bigint,
                   greatest(extract(epoch FROM until - clock_timestamp()), 0)::float8
               FROM coda_leases WHERE peer_id = $1";
    let stored = tx.query_opt(sql, &[peer_id]).await?.map(|row| StoredLease {
        token: row.get(0),
        holder: row.get(1),
        until: row.get(2),
        left: Duration::try_from_secs_f64(row.get(3)).unwrap_or(Duration::ZERO),
    });
    let answer = lease::decide(stored.as_ref(), claimant);
    if answer == LeaseAnswer::Granted {
        let sql = "INSERT INTO coda_leases (peer_id, token, holder, until)
                   VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))
                   ON CONFLICT (peer_id) DO UPDATE SET
                       token = excluded.token, holder = excluded.holder, until = excluded.until";
        tx.execute(sql, &[peer_id, token, holder, &lease.as_secs_f64()]).await?;
        let sql = "DELETE FROM coda_leases WHERE until < clock_timestamp() - make_interval(secs => $1)";
        tx.execute(sql, &[&KEPT_SECONDS]).await?;
    }
    tx.commit().await?;
    Ok(answer)
}

pub(super) async fn renew(
    client: &mut Client,
    claimant: &LeaseClaimant,
) -> Result<bool, tokio_postgres::Error> {
    // One that is over may have lost its jobs already, and stays over.
    let sql = "UPDATE coda_leases SET until = clock_timestamp() + make_interval(secs => $3)
               WHERE peer_id = $1 AND token = $2 AND until > clock_timestamp()";
    let LeaseClaimant { peer_id, token, lease, .. } = claimant;
    Ok(client.execute(sql, &[peer_id, token, &lease.as_secs_f64()]).await? > 0)
}

pub(super) async fn release(
    client: &mut Client,
    peer_id: &str,
    token: &str,
) -> Result<(), tokio_postgres::Error> {
    let tx = client.transaction().await?;
    tx.execute("DELETE FROM coda_leases WHERE peer_id = $1 AND token = $2", &[&peer_id, &token]).await?;
    let freed = tx.execute("UPDATE coda_open SET owner = NULL WHERE owner = $1", &[&token]).await?;
    if freed > 0 {
        notify(&tx, WAITING).await?;
    }
    tx.commit().await
}

pub(super) async fn take(
    client: &mut Client,
    token: &str,
    which: &JobSelection,
) -> Result<Vec<TakenJob>, tokio_postgres::Error> {
    let (name, most) = match which {
        JobSelection::First(most) | JobSelection::FirstIfAlone(most) => {
            (None, i64::try_from(*most).unwrap_or(i64::MAX))
        }
        JobSelection::Only(job_id) => (Some(StreamId::job(job_id.as_str()).to_string()), 1),
    };
    let sql = "
        WITH next AS MATERIALIZED (
            SELECT stream FROM coda_open
            WHERE position IS NOT NULL AND owner IS NULL AND ($2::text IS NULL OR stream = $2)
            ORDER BY position LIMIT $3 FOR UPDATE SKIP LOCKED
        )
        UPDATE coda_open SET owner = $1 FROM next
        WHERE coda_open.stream = next.stream
            AND EXISTS (SELECT 1 FROM coda_leases WHERE token = $1 AND until > clock_timestamp())
            AND NOT ($4 AND EXISTS (SELECT 1 FROM coda_leases WHERE token <> $1 AND until > clock_timestamp()))
        RETURNING coda_open.stream, position, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let if_alone = matches!(which, JobSelection::FirstIfAlone(_));
    let rows = client.query(sql, &[&token, &name, &most, &if_alone]).await?;
    let job = |row: &tokio_postgres::Row| {
        let name: String = row.get(0);
        let id = stream_named(&name).map(|stream| stream.id);
        // Only jobs have a position.
        TakenJob { job_id: id.unwrap_or(name), position: row.get(1), at: row.get(2) }
    };
    Ok(rows.iter().map(job).collect())
}

pub(super) async fn free_abandoned(client: &mut Client) -> Result<usize, tokio_postgres::Error> {
    // Asked often and seldom true: nothing is locked for the question.
    let abandoned = "owner IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM coda_leases l WHERE l.token = owner AND l.until > clock_timestamp())";
    let sql = format!("SELECT 1 FROM coda_open WHERE {abandoned} LIMIT 1");
    if client.query_opt(&sql, &[]).await?.is_none() {
        return Ok(0);
    }
    let tx = client.transaction().await?;
    let freed = tx.execute(&format!("UPDATE coda_open SET owner = NULL WHERE {abandoned}"), &[]).await?;
    if freed > 0 {
        notify(&tx, WAITING).await?;
    }
    tx.commit().await?;
    Ok(usize::try_from(freed).unwrap_or(usize::MAX))
}

pub(super) async fn give_back(
    client: &mut Client,
    token: &str,
    job_ids: &[String],
) -> Result<(), tokio_postgres::Error> {
    let names: Vec<String> = job_ids.iter().map(|id| StreamId::job(id.as_str()).to_string()).collect();
    let tx = client.transaction().await?;
    let sql = "UPDATE coda_open SET owner = NULL WHERE owner = $1 AND stream = ANY($2)";
    if tx.execute(sql, &[&token, &names]).await? > 0 {
        notify(&tx, WAITING).await?;
    }
    tx.commit().await
}

pub(super) async fn assigned(
    client: &mut Client,
    token: &str,
) -> Result<Vec<AssignedJob>, tokio_postgres::Error> {
    let sql = "SELECT stream, is_cancelled FROM coda_open WHERE owner = $1";
    let rows = client.query(sql, &[&token]).await?;
    let job = |row: &tokio_postgres::Row| {
        let name: String = row.get(0);
        let id = stream_named(&name).map(|stream| stream.id);
        AssignedJob { job_id: id.unwrap_or(name), is_cancelled: row.get(1) }
    };
    Ok(rows.iter().map(job).collect())
}

const WAITING_COUNT: &str = "SELECT count(*) FROM coda_open WHERE position IS NOT NULL AND owner IS NULL";

pub(super) async fn waiting(client: &mut Client) -> Result<usize, tokio_postgres::Error> {
    Ok(count(&client.query_one(WAITING_COUNT, &[]).await?))
}

fn count(row: &tokio_postgres::Row) -> usize {
    usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)
}
