//! `#[derive(Tree)]`, for structs and enums whose leaves are tensors.
//!
//! The macro writes an `impl podracer::tree::Tree`. It distinguishes the fields by their types:
//! a field whose type mentions the leaf parameter or a nested parameter is a subtree, any other
//! is static and belongs to the structure.
//!
//! `#[op]` is for functions of podracer alone that bind operations: it names them in messages.

mod fields;
mod generics;
mod op;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Member, Result, Type, parse_macro_input};

use crate::fields::Kind;
use crate::generics::Parameters;

/// Derives `podracer::tree::Tree` for a struct or an enum.
///
/// The leaf parameter is the type parameter named `T`, or the only one. A field whose type
/// mentions it is a subtree. Every other field is static: cloned along and hashed into the
/// structure, so its type must be `Clone` and `Hash` (`f32` and `f64` are hashed by their bits,
/// also within `Option`, `Vec`, `Box`, arrays and tuples).
///
/// ```text
/// #[derive(Tree, Clone)]
/// struct Mlp<T> {
///     layers: Vec<Dense<T>>,   // a subtree
///     activation: Activation,  // static
/// }
/// ```
///
/// `#[tree(nested = M)]` names a type parameter that is a tree itself; repeat it for several:
///
/// ```text
/// #[derive(Tree, Clone)]
/// #[tree(nested = M)]
/// struct TrainState<M> {
///     params: M,
///     momentum: M,
/// }
/// ```
///
/// `#[tree(transparent)]` leaves the only field of a struct, or of each variant, out of paths: the
/// leaves of `Cell::Lstm(lstm)` have the paths of those of `lstm`.
///
/// Beside nested parameters the leaf parameter must be named `T`; other type parameters are
/// static. A tree owns its leaves: references to them and lifetime parameters are refused.
#[proc_macro_derive(Tree, attributes(tree))]
pub fn derive_tree(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Marks a function of podracer that binds operations. Their lines are those of its caller, and errors
/// carry its name: `#[op]` stands for `#[track_caller]` and, first in the body,
///
/// ```text
/// let _scope = crate::trace::tensor::function("name of the function");
/// ```
///
/// `#[op("Dense")]` gives another name, for a method whose own says too little. `at_line` binds all
/// that the body calls at the caller's line, also in closures and in functions without
/// `#[track_caller]`: `#[op(at_line)]`, `#[op("Dense", at_line)]`.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn op(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let arguments = parse_macro_input!(arguments as op::Arguments);
    op::expand(arguments, item.into()).unwrap_or_else(Error::into_compile_error).into()
}

/// The bodies of the trait's methods for one struct or one variant: the arms of their matches.
#[derive(Default)]
struct Arms {
    map: TokenStream,
    map_ref: TokenStream,
    visit: TokenStream,
    nodes: TokenStream,
    hash: TokenStream,
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let variants: Vec<(TokenStream, &Fields)> = match &input.data {
        Data::Struct(data) => {
            let name = &input.ident;
            vec![(quote!(#name), &data.fields)]
        }
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let (name, variant_name) = (&input.ident, &variant.ident);
                (quote!(#name::#variant_name), &variant.fields)
            })
            .collect(),
        Data::Union(data) => {
            let message = "a union is not a tree: which of its fields is there is not known";
            return Err(Error::new(data.union_token.span(), message));
        }
    };
    if variants.is_empty() {
        return Err(Error::new(input.ident.span(), "an enum without variants is not a tree"));
    }

    let mut parameters = Parameters::new(input)?;
    let is_enum = matches!(input.data, Data::Enum(_));
    let mut arms = Arms::default();
    for (number, (constructor, fields)) in variants.iter().enumerate() {
        arms.add(constructor, fields, is_enum.then_some(number), &mut parameters)?;
    }

    let Arms { map, map_ref, visit, nodes, hash } = arms;
    let name = &input.ident;
    let leaf = &parameters.leaf;
    let (impl_generics, where_clause) = parameters.impl_generics();
    let arguments = parameters.arguments(None);
    let with_arguments = parameters.arguments(Some(&format_ident!("__U")));
    Ok(quote! {
        #[automatically_derived]
        #[allow(unused_variables)]
        impl #impl_generics ::podracer::tree::Tree<#leaf> for #name #arguments #where_clause {
            type With<__U: ::podracer::tree::Leaf> = #name #with_arguments;

            fn map_leaves<__U: ::podracer::tree::Leaf>(
                self,
                __path: &::podracer::tree::Path<'_>,
                __f: &mut dyn ::core::ops::FnMut(&::podracer::tree::Path<'_>, #leaf) -> __U,
            ) -> Self::With<__U> {
                match self { #map }
            }

            fn map_leaves_ref<__U: ::podracer::tree::Leaf>(
                &self,
                __path: &::podracer::tree::Path<'_>,
                __f: &mut dyn ::core::ops::FnMut(&::podracer::tree::Path<'_>, &#leaf) -> __U,
            ) -> Self::With<__U> {
                match self { #map_ref }
            }

            fn visit_leaves<'__t>(
                &'__t self,
                __path: &::podracer::tree::Path<'_>,
                __f: &mut dyn ::core::ops::FnMut(&::podracer::tree::Path<'_>, &'__t #leaf),
            ) {
                match self { #visit }
            }

            fn visit_nodes(
                &self,
                __path: &::podracer::tree::Path<'_>,
                __f: &mut dyn ::core::ops::FnMut(
                    &::podracer::tree::Path<'_>,
                    ::podracer::tree::Children<'_>,
                ),
            ) {
                match self { #nodes }
            }

            fn hash_structure(&self, __state: &mut dyn ::core::hash::Hasher) {
                match self { #hash }
            }
        }
    })
}

impl Arms {
    /// Adds the arm of one struct or variant; `number` is the variant's.
    fn add(
        &mut self,
        constructor: &TokenStream,
        fields: &Fields,
        number: Option<usize>,
        parameters: &mut Parameters,
    ) -> Result<()> {
        // `Name { 0: a, 1: b }` and `Name {}` also fit tuple and unit structs, so there is one
        // form for all.
        let mut bindings = TokenStream::new();
        let (mut map, mut map_ref) = (TokenStream::new(), TokenStream::new());
        let (mut visit, mut hash) = (TokenStream::new(), TokenStream::new());
        let (mut nodes, mut names) = (TokenStream::new(), Vec::new());
        if parameters.transparent && fields.len() != 1 {
            let message = "#[tree(transparent)] is for types and variants with one field";
            return Err(Error::new_spanned(constructor, message));
        }
        if let Some(number) = number {
            hash.extend(quote!(__state.write_usize(#number);));
        }
        for (i, field) in fields.iter().enumerate() {
            let ty = &field.ty;
            // The span puts errors about a static field's value at the field.
            let value = format_ident!("__field_{i}", span = ty.span());
            let member = match &field.ident {
                Some(name) => Member::from(name.clone()),
                None => Member::from(i),
            };
            bindings.extend(quote!(#member: #value,));
            match fields::kind(ty, parameters)? {
                Kind::Subtree => {
                    let step = match parameters.transparent {
                        true => quote!((*__path)),
                        false => step(&member, i),
                    };
                    let tree = as_tree(ty, &parameters.leaf);
                    map.extend(quote!(#member: #tree::map_leaves(#value, &#step, __f),));
                    map_ref.extend(quote!(#member: #tree::map_leaves_ref(#value, &#step, __f),));
                    visit.extend(quote!(#tree::visit_leaves(#value, &#step, __f);));
                    nodes.extend(quote!(#tree::visit_nodes(#value, &#step, __f);));
                    names.extend(field.ident.as_ref().map(|name| name.unraw().to_string()));
                    hash.extend(quote!(#tree::hash_structure(#value, __state);));
                }
                Kind::Phantom => {
                    let phantom = quote!(::core::marker::PhantomData);
                    map.extend(quote!(#member: #phantom,));
                    map_ref.extend(quote!(#member: #phantom,));
                }
                Kind::Static => {
                    let clone = quote_spanned!(ty.span()=> ::core::clone::Clone::clone(#value));
                    map.extend(quote!(#member: #value,));
                    map_ref.extend(quote!(#member: #clone,));
                    hash.extend(fields::hash(ty, &value));
                }
            }
        }
        let pattern = quote!(#constructor { #bindings });
        self.map.extend(quote!(#pattern => #constructor { #map },));
        self.map_ref.extend(quote!(#pattern => #constructor { #map_ref },));
        self.visit.extend(quote!(#pattern => { #visit }));
        // Positions of a tuple struct count its static fields too, as the paths do.
        let children = match fields {
            Fields::Named(_) => quote!(Names(&[#(#names),*])),
            Fields::Unnamed(_) | Fields::Unit => {
                let count = fields.len();
                quote!(Positions(#count))
            }
        };
        let node = (!parameters.transparent)
            .then(|| quote!(__f(__path, ::podracer::tree::Children::#children);));
        self.nodes.extend(quote!(#pattern => { #node #nodes }));
        self.hash.extend(quote!(#pattern => { #hash }));
        Ok(())
    }
}

/// The path from a node to its field.
fn step(member: &Member, index: usize) -> TokenStream {
    match member {
        Member::Named(name) => {
            let name = name.unraw().to_string();
            quote!(__path.field(#name))
        }
        Member::Unnamed(_) => quote!(__path.index(#index)),
    }
}

/// `<Field as Tree<T>>`, spanned so that a field that is no tree is underlined itself.
fn as_tree(ty: &Type, leaf: &Ident) -> TokenStream {
    quote_spanned!(ty.span().resolved_at(Span::mixed_site())=> <#ty as ::podracer::tree::Tree<#leaf>>)
}
