// Extracts from npm's @bufbuild/cel-spec the conformance cases that tests/unit/rules/language/cel/test_conformance.py runs:
//   npm pack @bufbuild/cel-spec@0.6.1 && tar xzf bufbuild-cel-spec-0.6.1.tgz
//   node tests/data/extract_cel_spec.cjs package > tests/data/cel_spec.json
// Run by hand, when a newer version of the specification is wanted; the tests need neither node nor a network.
const path = require("path");

const FILES = ["basic", "comparisons", "conversions", "fields", "fp_math", "integer_math", "lists", "logic", "macros", "string", "timestamps"];
const root = path.resolve(process.argv[2]);
const { version, license, upstreamCelSpecRef } = require(path.join(root, "package.json"));
const { tests } = require(path.join(root, "dist/cjs/testdata/conformance.js"));

const cases = [];
for (const file of tests.suites.filter((suite) => FILES.includes(suite.name))) {
  for (const section of file.suites) {
    for (const { original } of section.tests) {
      const { name, expr, value, evalError, bindings, container } = original;
      cases.push({ name: `${file.name}/${section.name}/${name}`, expr, value, error: evalError && true, bindings, container });
    }
  }
}
const source = `@bufbuild/cel-spec ${version}: the conformance suite of the CEL specification ${upstreamCelSpecRef}`;
console.log(`{"source": ${JSON.stringify(source)},\n"license": "${license}, Copyright Google LLC and Buf Technologies, Inc.",\n"cases": [`);
console.log(cases.map((one) => JSON.stringify(one)).join(",\n"));
console.log("]}");
