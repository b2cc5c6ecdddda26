// An identity provider: the npm package `oidc-provider`, which is certified. Its people and clients are given as JSON.
import { createServer } from "node:http";
import Provider from "oidc-provider";
import { exportJWK, generateKeyPair } from "jose";

const { console: server, people, secret } = JSON.parse(process.argv[2]);
const keys = [];
for (const alg of ["RS256", "ES256"]) {
  const { privateKey } = await generateKeyPair(alg, { extractable: true });
  keys.push({ ...(await exportJWK(privateKey)), alg, use: "sig", kid: `key-${alg}` });
}
const http = createServer();
await new Promise((listening) => http.listen(0, "127.0.0.1", listening));
// Another site than that of the console, since a browser takes the ports of one host for one site.
const issuer = `http://localhost:${http.address().port}`;
const API = "https://kb.example.org/api";
const person = (id) => people[id] ?? {};
const provider = new Provider(issuer, {
  jwks: { keys },
  cookies: { keys: [secret] },
  clients: [
    {
      client_id: "console", client_secret: secret,
      redirect_uris: [`${server}/session/return`], post_logout_redirect_uris: [`${server}/`],
      backchannel_logout_uri: `${server}/session/logout`, backchannel_logout_session_required: true,
    },
    {
      client_id: "program", token_endpoint_auth_method: "none", application_type: "native",
      redirect_uris: ["http://127.0.0.1/program"], id_token_signed_response_alg: "ES256",
    },
  ],
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.org`, email_verified: true, groups: person(id).groups }),
  }),
  extraTokenClaims: (_, token) => ({ groups: person(token.accountId).groups }),
  features: {
    backchannelLogout: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: (_, client) => (client.clientId === "program" ? API : undefined),
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: "read", audience: "colmlm-api", accessTokenFormat: "jwt", jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
  // The provider itself asks no address of this machine, and the console is at one.
  fetch: (url, { dispatcher, ...asked }) => fetch(url, asked),
  ttl: { IdToken: (_, token) => person(token.available.sub).seconds ?? 3600 },
});
http.on("request", provider.callback());
console.log(JSON.stringify({ issuer }));
