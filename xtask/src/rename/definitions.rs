//! Finds the items of a source file: their definitions, and the place for an attribute on each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::Context;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The definition of one item.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Its key in a map: `Type`, `function`, `Type::method`, `Enum::Variant`, `Type.field`.
    pub key: String,
    /// Its name.
    pub name: Range<usize>,
    /// The place for an attribute on it.
    pub attribute_at: usize,
    /// All of it.
    pub whole: Range<usize>,
    /// Its kind.
    pub kind: ItemKind,
}

/// The kind of an item, as far as a rename needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// A struct, enum, union, trait or alias.
    Type,
    /// A trait: its methods are defined again by every implementation.
    Trait,
    /// An item of a trait.
    TraitItem,
    /// A variant of an enum.
    Variant,
    /// A named field.
    Field,
    /// A function, method, constant or static.
    Other,
}

/// An implementation of a trait: the trait's name, and the names of the items.
#[derive(Clone, Debug)]
pub struct TraitImplementation {
    /// The last segment of the trait's path.
    pub trait_name: Range<usize>,
    /// Names of the items, and their places.
    pub items: Vec<(String, Range<usize>)>,
}

/// All items of one file that a map can name, and the parser's own knowledge of it.
#[derive(Default)]
pub struct FileItems {
    /// Every definition. A key can stand for several: methods of the same name in two
    /// implementations.
    pub definitions: Vec<Definition>,
    /// Implementations of traits.
    pub implementations: Vec<TraitImplementation>,
    /// Names that stand for a field and a local variable at once: `Point { x, y }`.
    pub shorthands: BTreeSet<(usize, usize)>,
    /// Names of fields at their definition or with a value: no local variables.
    pub fields: BTreeSet<(usize, usize)>,
}

impl FileItems {
    /// Parses a file.
    pub fn parse(text: &str) -> anyhow::Result<FileItems> {
        let file = syn::parse_file(text).context("parse the file")?;
        let mut finder = Finder::default();
        finder.visit_file(&file);
        Ok(finder.items)
    }

    /// The definitions by their keys.
    pub fn by_key(&self) -> BTreeMap<&str, Vec<&Definition>> {
        let mut by_key: BTreeMap<&str, Vec<&Definition>> = BTreeMap::new();
        for definition in &self.definitions {
            by_key.entry(&definition.key).or_default().push(definition);
        }
        by_key
    }
}

#[derive(Default)]
struct Finder {
    items: FileItems,
    /// The type whose implementation is being visited.
    self_type: Option<String>,
}

fn range(spanned: &impl Spanned) -> Range<usize> {
    spanned.span().byte_range()
}

/// The start of an item behind its attributes.
fn start(parts: &[&dyn ToTokensStart]) -> usize {
    parts.iter().find_map(|part| part.first()).expect("an item has a token")
}

/// The start of something that may be empty.
trait ToTokensStart {
    fn first(&self) -> Option<usize>;
}

impl<T: ToTokens> ToTokensStart for T {
    fn first(&self) -> Option<usize> {
        self.to_token_stream().into_iter().next().map(|token| token.span().byte_range().start)
    }
}

impl Finder {
    fn add(&mut self, key: String, ident: &syn::Ident, attribute_at: usize, whole: Range<usize>, kind: ItemKind) {
        let name = range(ident);
        self.items.definitions.push(Definition { key, name, attribute_at, whole, kind });
    }

    fn add_fields(&mut self, owner: &str, fields: &syn::Fields) {
        for field in fields {
            let Some(ident) = &field.ident else { continue };
            let name = range(ident);
            self.items.fields.insert((name.start, name.end));
            let at = start(&[&field.vis, ident]);
            self.add(format!("{owner}.{ident}"), ident, at, range(field), ItemKind::Field);
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let at = start(&[&item.vis, &item.struct_token]);
        self.add(item.ident.to_string(), &item.ident, at, range(item), ItemKind::Type);
        self.add_fields(&item.ident.to_string(), &item.fields);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        let at = start(&[&item.vis, &item.enum_token]);
        self.add(item.ident.to_string(), &item.ident, at, range(item), ItemKind::Type);
        for variant in &item.variants {
            let key = format!("{}::{}", item.ident, variant.ident);
            let at = range(&variant.ident).start;
            self.add(key, &variant.ident, at, range(variant), ItemKind::Variant);
            self.add_fields(&format!("{}::{}", item.ident, variant.ident), &variant.fields);
        }
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        let at = start(&[&item.vis, &item.union_token]);
        self.add(item.ident.to_string(), &item.ident, at, range(item), ItemKind::Type);
        visit::visit_item_union(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        let at = start(&[&item.vis, &item.type_token]);
        self.add(item.ident.to_string(), &item.ident, at, range(item), ItemKind::Type);
        visit::visit_item_type(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let at = start(&[&item.vis, &item.unsafety, &item.trait_token]);
        self.add(item.ident.to_string(), &item.ident, at, range(item), ItemKind::Trait);
        for member in &item.items {
            let (ident, at) = match member {
                syn::TraitItem::Fn(function) => (&function.sig.ident, start(&[&function.sig])),
                syn::TraitItem::Const(constant) => (&constant.ident, start(&[&constant.const_token])),
                syn::TraitItem::Type(alias) => (&alias.ident, start(&[&alias.type_token])),
                _ => continue,
            };
            self.add(format!("{}::{ident}", item.ident), ident, at, range(member), ItemKind::TraitItem);
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let at = start(&[&item.vis, &item.sig]);
        self.add(item.sig.ident.to_string(), &item.sig.ident, at, range(item), ItemKind::Other);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        let at = start(&[&item.vis, &item.const_token]);
        self.add(item.ident.to_string(), &item.ident, at, range(item), ItemKind::Other);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        let at = start(&[&item.vis, &item.static_token]);
        self.add(item.ident.to_string(), &item.ident, at, range(item), ItemKind::Other);
        visit::visit_item_static(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let named = |member: &syn::ImplItem| match member {
            syn::ImplItem::Fn(function) => Some(function.sig.ident.clone()),
            syn::ImplItem::Const(constant) => Some(constant.ident.clone()),
            syn::ImplItem::Type(alias) => Some(alias.ident.clone()),
            _ => None,
        };
        let self_type = last_segment(&item.self_ty);
        if let Some((path, ..)) = &item.trait_ {
            let trait_name = range(&path.segments.last().expect("a path has a segment").ident);
            let items = item.items.iter().filter_map(named).map(|ident| (ident.to_string(), range(&ident))).collect();
            self.items.implementations.push(TraitImplementation { trait_name, items });
        } else if let Some(self_type) = &self_type {
            for member in &item.items {
                let (ident, at) = match member {
                    syn::ImplItem::Fn(function) => (&function.sig.ident, start(&[&function.vis, &function.sig])),
                    syn::ImplItem::Const(constant) => (&constant.ident, start(&[&constant.vis, &constant.const_token])),
                    _ => continue,
                };
                self.add(format!("{self_type}::{ident}"), ident, at, range(member), ItemKind::Other);
            }
        }
        let outer = std::mem::replace(&mut self.self_type, self_type);
        visit::visit_item_impl(self, item);
        self.self_type = outer;
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        self.record_member(&field.member, field.colon_token.is_none());
        visit::visit_field_value(self, field);
    }

    fn visit_field_pat(&mut self, field: &'ast syn::FieldPat) {
        self.record_member(&field.member, field.colon_token.is_none());
        visit::visit_field_pat(self, field);
    }
}

impl Finder {
    fn record_member(&mut self, member: &syn::Member, is_shorthand: bool) {
        if let syn::Member::Named(ident) = member {
            let at = range(ident);
            let set = if is_shorthand { &mut self.items.shorthands } else { &mut self.items.fields };
            set.insert((at.start, at.end));
        }
    }
}

/// The name of the type that an implementation is for.
fn last_segment(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        syn::Type::Reference(reference) => last_segment(&reference.elem),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
/// Doc.
#[derive(Debug)]
pub struct Held<'a> { pub seen: &'a u8, mark: u8 }
pub(crate) enum Place { Free, Busy { at: u8 } }
impl<'a> Held<'a> {
    /// Doc.
    pub(crate) const fn look(&self) -> u8 { let mark = 1; Self { seen: self.seen, mark }.mark }
}
trait See { fn see(&self); }
impl See for Held<'_> { fn see(&self) {} }
mod inner { pub fn say() { fn nested() {} } }
";

    #[test]
    fn items_are_found_by_their_keys_and_attributes_go_in_front_of_them() {
        let items = FileItems::parse(TEXT).unwrap();
        let keys: Vec<&str> = items.by_key().into_keys().collect();
        let wanted = [
            "Held",
            "Held.mark",
            "Held.seen",
            "Held::look",
            "Place",
            "Place::Busy",
            "Place::Busy.at",
            "Place::Free",
            "See",
            "See::see",
            "nested",
            "say",
        ];
        assert_eq!(keys, wanted);
        for definition in &items.definitions {
            let name = definition.key.rsplit(['.', ':']).next().unwrap();
            assert_eq!(&TEXT[definition.name.clone()], name);
        }
        let starts = |key: &str| &TEXT[items.by_key()[key][0].attribute_at..][..8];
        assert_eq!(starts("Held"), "pub stru");
        assert_eq!(starts("Held::look"), "pub(crat");
        assert_eq!(starts("Held.mark"), "mark: u8");
    }

    #[test]
    fn a_shorthand_differs_from_a_field_with_a_value() {
        let items = FileItems::parse(TEXT).unwrap();
        let names = |set: &BTreeSet<(usize, usize)>| set.iter().map(|&(from, to)| &TEXT[from..to]).collect::<Vec<_>>();
        assert_eq!(names(&items.shorthands), ["mark"]);
        assert_eq!(names(&items.fields), ["seen", "mark", "at", "seen"]);
        assert_eq!(items.implementations.len(), 1);
    }
}
