//! Colours of the style sheet, as eyes see them.

use super::super::svg;

/// A colour of the style sheet as light of red, green and blue, from 0 to 1.
fn light(colour: &str) -> [f64; 3] {
    [1, 3, 5].map(|n| {
        let c = f64::from(u8::from_str_radix(&colour[n..n + 2], 16).unwrap()) / 255.0;
        if c <= 0.04045 {
            c / 12.92
        } else {
            ((c + 0.055) / 1.055).powf(2.4)
        }
    })
}

fn sum(weights: [f64; 3], light: [f64; 3]) -> f64 {
    weights.iter().zip(light).map(|(w, l)| w * l).sum()
}

/// Contrast of two colours as WCAG 2 defines it.
fn contrast(a: &str, b: &str) -> f64 {
    let luminance = |colour| sum([0.2126, 0.7152, 0.0722], light(colour));
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

/// A place in CIELAB, where distances are what eyes see.
fn lab(light: [f64; 3]) -> [f64; 3] {
    let f = |weights, white: f64| {
        let t = sum(weights, light) / white;
        if t > 0.008_856 {
            t.cbrt()
        } else {
            7.787 * t + 16.0 / 116.0
        }
    };
    let x = f([0.4124, 0.3576, 0.1805], 0.9505);
    let y = f([0.2126, 0.7152, 0.0722], 1.0);
    let z = f([0.0193, 0.1192, 0.9505], 1.089);
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

/// What eyes make of light: all of it, and without one kind of cones each (Machado et al. 2009).
const EYES: [[[f64; 3]; 3]; 4] = [
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    [
        [0.152, 1.053, -0.205],
        [0.115, 0.786, 0.099],
        [-0.004, -0.048, 1.052],
    ],
    [
        [0.367, 0.861, -0.228],
        [0.280, 0.673, 0.047],
        [-0.012, 0.043, 0.969],
    ],
    [
        [1.256, -0.077, -0.179],
        [-0.078, 0.931, 0.148],
        [0.005, 0.691, 0.304],
    ],
];

#[test]
fn colours_can_be_told_apart_in_light_and_dark() {
    let css = include_str!("../style.css");
    let themes = css.split(":root {").skip(1);
    let themes: Vec<&str> = themes.map(|t| t.split('}').next().unwrap()).collect();
    assert_eq!(themes.len(), 2);
    for theme in themes {
        let colour = |name: &str| {
            let at = theme.find(&format!("--{name}: #")).unwrap() + name.len() + 4;
            &theme[at..at + 7]
        };
        for ground in ["ground", "panel", "warn"] {
            assert!(contrast(colour("text"), colour(ground)) >= 7.0, "{ground}");
        }
        let series: Vec<&str> = (0..svg::COLOURS)
            .map(|n| colour(&format!("c{n}")))
            .collect();
        for ground in ["ground", "panel"] {
            for text in ["dim", "link"] {
                assert!(contrast(colour(text), colour(ground)) >= 4.5, "{text}");
            }
            for c in &series {
                assert!(contrast(c, colour(ground)) >= 3.0, "{c} on {ground}");
            }
        }
        for eyes in EYES {
            let seen = |c: &str| lab(eyes.map(|row| sum(row, light(c)).clamp(0.0, 1.0)));
            for (n, a) in series.iter().enumerate() {
                for b in &series[..n] {
                    let pairs = seen(a).into_iter().zip(seen(b));
                    let apart = pairs.map(|(p, q)| (p - q).powi(2)).sum::<f64>().sqrt();
                    assert!(apart >= 25.0, "{a} and {b}: {apart}");
                }
            }
        }
    }
}
