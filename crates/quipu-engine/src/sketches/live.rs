//! Sketches of all kinds.

use quipu_sketch::{CountMin, Damaged, Hll, Top, Unique};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Hll,
    Unique,
    Cms,
    Frequency,
    TopK,
    Top,
}

const CODES: [(Kind, u8); 6] =
    [(Kind::Hll, 1), (Kind::Unique, 2), (Kind::Cms, 3), (Kind::Frequency, 4), (Kind::TopK, 5), (Kind::Top, 6)];

impl Kind {
    pub fn code(self) -> u8 {
        CODES.iter().find(|(kind, _)| *kind == self).expect("all are there").1
    }
    pub fn from_code(code: u8) -> Option<Kind> {
        CODES.iter().find(|(_, known)| *known == code).map(|(kind, _)| *kind)
    }
}

#[derive(Debug, Clone)]
pub enum Sketch {
    Hll(Hll),
    Unique(Unique),
    Cms(CountMin),
    Frequency(CountMin),
    TopK(Top),
    Top(Top),
}

impl Sketch {
    pub fn kind(&self) -> Kind {
        match self {
            Sketch::Hll(_) => Kind::Hll,
            Sketch::Unique(_) => Kind::Unique,
            Sketch::Cms(_) => Kind::Cms,
            Sketch::Frequency(_) => Kind::Frequency,
            Sketch::TopK(_) => Kind::TopK,
            Sketch::Top(_) => Kind::Top,
        }
    }
    pub fn bytes(&self) -> &[u8] {
        match self {
            Sketch::Hll(s) => s.bytes(),
            Sketch::Unique(s) => s.bytes(),
            Sketch::Cms(s) | Sketch::Frequency(s) => s.bytes(),
            Sketch::TopK(s) | Sketch::Top(s) => s.bytes(),
        }
    }
    pub fn memory(&self) -> usize {
        match self {
            Sketch::Hll(s) => s.memory(),
            Sketch::Unique(s) => s.memory(),
            Sketch::Cms(s) | Sketch::Frequency(s) => s.memory(),
            Sketch::TopK(s) | Sketch::Top(s) => s.memory(),
        }
    }
    pub fn from_bytes(kind: Kind, bytes: Vec<u8>) -> Result<Sketch, Damaged> {
        Ok(match kind {
            Kind::Hll => Sketch::Hll(Hll::from_bytes(bytes)?),
            Kind::Unique => Sketch::Unique(Unique::from_bytes(bytes)?),
            Kind::Cms => Sketch::Cms(CountMin::from_bytes(bytes)?),
            Kind::Frequency => Sketch::Frequency(CountMin::from_bytes(bytes)?),
            Kind::TopK => Sketch::TopK(Top::from_bytes(bytes)?),
            Kind::Top => Sketch::Top(Top::from_bytes(bytes)?),
        })
    }
}
