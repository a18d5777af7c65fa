// Asks a server for the status of a bus, and for that of a bus that does not exist. Prints the answer and the detail of the error as one
// line of JSON. Arguments: address, file of authorities, file of the token, bus, missing bus.
import { readFileSync } from "node:fs";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { ProjectionService } from "./generated/gavel/v1/projection_service_pb.js";
import { ErrorInfoSchema } from "./generated/google/rpc/error_details_pb.js";

const callMsMax = 20_000;

async function main(server: string, authorities: string, tokenFile: string, bus: string, missing: string): Promise<void> {
  const token = readFileSync(tokenFile, "utf8").trim();
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  const transport = createGrpcTransport({
    baseUrl: `https://${server}`,
    interceptors: [authorize],
    nodeOptions: { ca: readFileSync(authorities) },
    defaultTimeoutMs: callMsMax,
  });
  const projections = createClient(ProjectionService, transport);
  const answer = await projections.getStatus({ bus });
  try {
    await projections.getStatus({ bus: missing });
  } catch (caught) {
    const error = ConnectError.from(caught);
    const [info] = error.findDetails(ErrorInfoSchema);
    if (info === undefined) {
      throw error;
    }
    // A sequence number is a bigint, which JSON cannot write; the ones of a test fit into a number.
    const head = Number(answer.headSequenceNumber);
    console.log(JSON.stringify({ head, code: Code[error.code], domain: info.domain, reason: info.reason }));
    process.exit(); // the connection would keep the process for its idle time
  }
  throw new Error(`bus ${missing} exists`);
}

const [server = "", authorities = "", tokenFile = "", bus = "", missing = ""] = process.argv.slice(2);
await main(server, authorities, tokenFile, bus, missing);
