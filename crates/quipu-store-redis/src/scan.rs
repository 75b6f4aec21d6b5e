//! Names of rows, page by page, by SCAN on every server that has rows.
//!
//! In: where the last page ended. Out: names, and where to go on.
//!
//! A cursor of SCAN means something only to the process that gave it, and a list of masters only while no slot moves. So ours says which
//! process and which list it is of, and if either has changed, that server, or the whole walk, is begun anew: names are met twice, and none is
//! missed. SCAN may answer with more than it was asked for; what does not fit the page waits in the cursor.
//!
//! Not covered: a row whose slot is being moved from a server not walked yet to one walked before, by a move that begins before the first
//! page and ends after the last. Walk again after moving slots.

use redis::{Pipeline, Value};

use quipu_model::{Cursor, Name, Page};

use crate::error::{Damaged, Failure};
use crate::layout::Keys;
use crate::route::Route;

/// Where a walk is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Place {
    digest: u64,          // of the list of masters
    master: u64,          // which of them
    at: u64,              // the server's own cursor
    process: Vec<u8>,     // which gave it
    rest: Vec<Box<[u8]>>, // names that did not fit
}

/// One page.
pub(crate) async fn page(route: &Route, keys: &Keys, from: Option<Cursor>, names_max: usize) -> Result<Page, Failure> {
    let names_max = names_max.max(1);
    let place = match &from {
        Some(Cursor(bytes)) => Some(Place::decode(bytes).ok_or_else(|| Failure::unsent("not a cursor of this store"))?),
        None => None,
    };
    if let Some(place) = &place
        && !place.rest.is_empty()
    {
        let mut place = place.clone();
        let names = place.take(Vec::new(), names_max);
        return Ok(Page { names, next: place.next(route).await? });
    }
    let masters = route.masters(false).await?;
    let mut place = place.filter(|place| place.digest == masters.digest).unwrap_or_default();
    place.digest = masters.digest;
    let Some(link) = usize::try_from(place.master).ok().and_then(|master| masters.links.get(master)) else {
        return Err(Failure::unsent("not a cursor of this store"));
    };
    let (prefix, pattern) = keys.rows();
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("INFO").arg("server");
    pipeline.cmd("SCAN").arg(place.at).arg("MATCH").arg(pattern).arg("COUNT").arg(names_max);
    let replies = link.send(&pipeline, None).await.inspect_err(|_| route.doubt())?;
    let (process, (at, found)) = decode(replies)?;
    if place.at != 0 && place.process != process {
        (place.at, place.process) = (0, Vec::new());
        return Ok(Page { names: Vec::new(), next: Some(place.encode()) });
    }
    // A key that cannot be a counter's is somebody else's.
    let names = found.iter().filter_map(|key| key.strip_prefix(prefix)).filter(|name| Name::new(name).is_ok());
    let found = names.map(Into::into).collect();
    (place.at, place.process) = (at, process);
    if at == 0 {
        place.master += 1;
    }
    let names = place.take(found, names_max);
    Ok(Page { names, next: place.next(route).await? })
}

impl Place {
    /// As many as fit the page; the rest waits.
    fn take(&mut self, mut found: Vec<Box<[u8]>>, names_max: usize) -> Vec<Box<[u8]>> {
        found.append(&mut self.rest);
        self.rest = found.split_off(found.len().min(names_max));
        found
    }

    /// Where to go on; none if this was the last page, and nothing has moved meanwhile.
    async fn next(&self, route: &Route) -> Result<Option<Cursor>, Failure> {
        if self.at != 0 || !self.rest.is_empty() {
            return Ok(Some(self.encode()));
        }
        let masters = route.masters(true).await?;
        if masters.digest != self.digest {
            return Ok(Some(Place { digest: masters.digest, ..Place::default() }.encode()));
        }
        let more = usize::try_from(self.master).is_ok_and(|master| master < masters.links.len());
        Ok(more.then(|| self.encode()))
    }

    fn encode(&self) -> Cursor {
        let mut bytes = Vec::new();
        for number in [self.digest, self.master, self.at] {
            bytes.extend(number.to_be_bytes());
        }
        for part in std::iter::once(&self.process[..]).chain(self.rest.iter().map(|name| &**name)) {
            bytes.extend((part.len() as u32).to_be_bytes());
            bytes.extend(part);
        }
        Cursor(bytes.into())
    }

    fn decode(bytes: &[u8]) -> Option<Place> {
        let mut left = bytes;
        let mut number = || {
            let (number, rest) = left.split_first_chunk::<8>()?;
            left = rest;
            Some(u64::from_be_bytes(*number))
        };
        let (digest, master, at) = (number()?, number()?, number()?);
        let mut parts = Vec::new();
        while !left.is_empty() {
            let (length, rest) = left.split_first_chunk::<4>()?;
            let (part, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            parts.push(part.into());
            left = rest;
        }
        if parts.is_empty() {
            return None;
        }
        let process: Box<[u8]> = parts.remove(0);
        Some(Place { digest, master, at, process: process.into(), rest: parts })
    }
}

/// The id of the process, its cursor, and keys.
type Found = (Vec<u8>, (u64, Vec<Vec<u8>>));

fn decode(replies: Vec<Value>) -> Result<Found, Failure> {
    let [info, scan] = <[Value; 2]>::try_from(replies).map_err(|_| Damaged::Reply)?;
    let read = |reply: Value| match reply {
        Value::ServerError(error) => Err(Failure::answered(error)),
        reply => Ok(reply),
    };
    let info: String = redis::from_redis_value(read(info)?).map_err(Failure::lost)?;
    let process = info.lines().find_map(|line| line.strip_prefix("run_id:")).ok_or(Damaged::Reply)?;
    Ok((process.trim().as_bytes().to_vec(), redis::from_redis_value(read(scan)?).map_err(Failure::lost)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_decodes_to_what_was_encoded_and_other_bytes_to_none() {
        let rest = vec![(*b"").into(), (*b"a\0b").into()];
        let place = Place { digest: u64::MAX, master: 3, at: 9, process: b"run".to_vec(), rest };
        let Cursor(bytes) = place.encode();
        assert_eq!(Place::decode(&bytes), Some(place));
        for cut in 0..24 {
            assert_eq!(Place::decode(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn what_does_not_fit_a_page_waits_for_the_next() {
        let name = |n: u8| Box::from([n]);
        let mut place = Place::default();
        assert_eq!(place.take((0..5).map(name).collect(), 2).len(), 2);
        assert_eq!(place.take(Vec::new(), 2).len(), 2);
        assert_eq!((place.take(Vec::new(), 2).len(), place.rest.len()), (1, 0));
    }
}
