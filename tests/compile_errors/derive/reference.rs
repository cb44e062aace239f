#[derive(podracer::Tree)]
struct Dense<T: 'static> {
    w: T,
    b: &'static T,
    more: Vec<&'static T>,
}

#[derive(podracer::Tree)]
struct More<T: 'static> {
    more: Vec<&'static T>,
}

#[derive(podracer::Tree)]
struct Borrowed<'a, T> {
    w: &'a T,
}

fn main() {}
