//! Lists the names of rows page by page, by SCAN on every server that has rows.
//!
//! In: the end of the last page. Out: names, and the next cursor.
//!
//! A SCAN cursor is valid only for the process that issued it, and a list of masters only while no
//! slot moves. So this crate's cursor names its process and its list. If either has changed, that
//! server's scan, or the whole scan, starts again. Names may come twice, and none is missed. SCAN
//! may return more names than requested; the cursor carries the names that do not fit the page.
//!
//! Not covered: a row in a slot that moves from a server not scanned yet to one already scanned.
//! The move must begin before the first page and end after the last. Scan again after moving slots.

use redis::{Pipeline, Value};

use quipu_model::{Cursor, Name, ScanPage};
use quipu_store_kit::CallFailure;

use crate::error::{DataError, classify_server_error};
use crate::layout::KeyNames;
use crate::route::Route;

/// Position of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ScanPosition {
    digest: u64,              // digest of the list of masters
    master: u64,              // index of the master in the list
    at: u64,                  // SCAN cursor of the server
    process: Vec<u8>,         // process that issued the cursor
    leftover: Vec<Box<[u8]>>, // names that did not fit the page
}

/// Reads one page.
pub(crate) async fn scan_page(
    route: &Route,
    keys: &KeyNames,
    from: Option<Cursor>,
    names_max: usize,
) -> Result<ScanPage, CallFailure> {
    let names_max = names_max.max(1);
    let position = match &from {
        Some(Cursor(bytes)) => {
            Some(ScanPosition::decode(bytes).ok_or_else(|| CallFailure::unsent("not a cursor of this store"))?)
        }
        None => None,
    };
    if let Some(position) = &position
        && !position.leftover.is_empty()
    {
        let mut position = position.clone();
        let names = position.take_names(Vec::new(), names_max);
        return Ok(ScanPage { names, next: position.next_cursor(route).await? });
    }
    let masters = route.masters(false).await?;
    let mut position = position.filter(|position| position.digest == masters.digest).unwrap_or_default();
    position.digest = masters.digest;
    let Some(link) = usize::try_from(position.master).ok().and_then(|master| masters.links.get(master)) else {
        return Err(CallFailure::unsent("not a cursor of this store"));
    };
    let (prefix, pattern) = keys.rows();
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("INFO").arg("server");
    pipeline.cmd("SCAN").arg(position.at).arg("MATCH").arg(pattern).arg("COUNT").arg(names_max);
    let replies = link.send(&pipeline, None).await.inspect_err(|_| route.invalidate_slots())?;
    let (process, (at, names_found)) = decode(replies)?;
    if position.at != 0 && position.process != process {
        (position.at, position.process) = (0, Vec::new());
        return Ok(ScanPage { names: Vec::new(), next: Some(position.encode()) });
    }
    // A key that is no valid counter name belongs to another program.
    let names = names_found.iter().filter_map(|key| key.strip_prefix(prefix)).filter(|name| Name::new(name).is_ok());
    let names_found = names.map(Into::into).collect();
    (position.at, position.process) = (at, process);
    if at == 0 {
        position.master += 1;
    }
    let names = position.take_names(names_found, names_max);
    Ok(ScanPage { names, next: position.next_cursor(route).await? })
}

impl ScanPosition {
    /// Takes the names that fit the page; the rest stays in the cursor.
    fn take_names(&mut self, mut names_found: Vec<Box<[u8]>>, names_max: usize) -> Vec<Box<[u8]>> {
        names_found.append(&mut self.leftover);
        self.leftover = names_found.split_off(names_found.len().min(names_max));
        names_found
    }

    /// Returns the next cursor; none after the last page if no slot has moved meanwhile.
    async fn next_cursor(&self, route: &Route) -> Result<Option<Cursor>, CallFailure> {
        if self.at != 0 || !self.leftover.is_empty() {
            return Ok(Some(self.encode()));
        }
        let masters = route.masters(true).await?;
        if masters.digest != self.digest {
            return Ok(Some(ScanPosition { digest: masters.digest, ..ScanPosition::default() }.encode()));
        }
        let more = usize::try_from(self.master).is_ok_and(|master| master < masters.links.len());
        Ok(more.then(|| self.encode()))
    }

    fn encode(&self) -> Cursor {
        let mut bytes = Vec::new();
        for number in [self.digest, self.master, self.at] {
            bytes.extend(number.to_be_bytes());
        }
        for part in std::iter::once(&self.process[..]).chain(self.leftover.iter().map(|name| &**name)) {
            bytes.extend((part.len() as u32).to_be_bytes());
            bytes.extend(part);
        }
        Cursor(bytes.into())
    }

    fn decode(bytes: &[u8]) -> Option<ScanPosition> {
        let mut input = bytes;
        let mut number = || {
            let (number, leftover) = input.split_first_chunk::<8>()?;
            input = leftover;
            Some(u64::from_be_bytes(*number))
        };
        let (digest, master, at) = (number()?, number()?, number()?);
        let mut parts = Vec::new();
        while !input.is_empty() {
            let (length, leftover) = input.split_first_chunk::<4>()?;
            let (part, leftover) = leftover.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            parts.push(part.into());
            input = leftover;
        }
        if parts.is_empty() {
            return None;
        }
        let process: Box<[u8]> = parts.remove(0);
        Some(ScanPosition { digest, master, at, process: process.into(), leftover: parts })
    }
}

/// The process id, its cursor, and keys.
type ScanReply = (Vec<u8>, (u64, Vec<Vec<u8>>));

fn decode(replies: Vec<Value>) -> Result<ScanReply, CallFailure> {
    let [info, scan] = <[Value; 2]>::try_from(replies).map_err(|_| DataError::Reply)?;
    let read = |reply: Value| match reply {
        Value::ServerError(error) => Err(classify_server_error(error)),
        reply => Ok(reply),
    };
    let info: String = redis::from_redis_value(read(info)?).map_err(CallFailure::lost)?;
    let process = info.lines().find_map(|line| line.strip_prefix("run_id:")).ok_or(DataError::Reply)?;
    Ok((process.trim().as_bytes().to_vec(), redis::from_redis_value(read(scan)?).map_err(CallFailure::lost)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_decodes_to_what_was_encoded_and_other_bytes_to_none() {
        let leftover = vec![(*b"").into(), (*b"a\0b").into()];
        let position = ScanPosition { digest: u64::MAX, master: 3, at: 9, process: b"run".to_vec(), leftover };
        let Cursor(bytes) = position.encode();
        assert_eq!(ScanPosition::decode(&bytes), Some(position));
        for cut in 0..24 {
            assert_eq!(ScanPosition::decode(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn what_does_not_fit_a_page_waits_for_the_next() {
        let name = |n: u8| Box::from([n]);
        let mut position = ScanPosition::default();
        assert_eq!(position.take_names((0..5).map(name).collect(), 2).len(), 2);
        assert_eq!(position.take_names(Vec::new(), 2).len(), 2);
        assert_eq!((position.take_names(Vec::new(), 2).len(), position.leftover.len()), (1, 0));
    }
}
