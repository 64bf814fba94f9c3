// SPDX-License-Identifier: Apache-2.0
#include "front/tls/tls_context.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace fused_mlp::front {
namespace {

// HTTP/2 first: it is what a client that offers both is given.
constexpr unsigned char kAlpn[] = {2, 'h', '2', 8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
constexpr unsigned kHttp2Alpn = 3;  // of it, where nothing else is spoken

struct ContextDeleter {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using Context = std::unique_ptr<SSL_CTX, ContextDeleter>;

// gRPC over TLS is HTTP/2 by ALPN: a client that offers only something else is turned away in the handshake.
int choose_alpn(SSL* session, const unsigned char** out, unsigned char* out_size,
                const unsigned char* offered, unsigned offered_size, void*) {
  unsigned char* chosen = nullptr;
  const unsigned size = SSL_get_app_data(session) != nullptr ? sizeof kAlpn : kHttp2Alpn;
  if (SSL_select_next_proto(&chosen, out_size, kAlpn, size, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

// OpenSSL would ask at the terminal, and wait.
int no_password(char*, int, int, void*) { return 0; }

[[noreturn]] void fail(const std::string& what) {
  char reason[256] = "";
  ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
  ERR_clear_error();
  throw std::runtime_error(what + ": " + reason);
}

void set_rules(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context,
                      SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  // The ciphers of TLS 1.2 that HTTP/2 allows (RFC 9113, 9.2.2); those of 1.3 all are.
  SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20");
  SSL_CTX_set_alpn_select_cb(context, choose_alpn, nullptr);
  SSL_CTX_set_default_passwd_cb(context, no_password);
  // Sessions are resumed by tickets, which the client keeps. The cache would hold 20 thousand of them here.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
}

void read_certificate(SSL_CTX* context, const TlsFiles& files) {
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    fail("TLS certificate " + files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    fail("TLS key " + files.key);
  }
  if (SSL_CTX_check_private_key(context) != 1) {
    fail("TLS key " + files.key + " does not belong to certificate " + files.certificate);
  }
}

void read_client_ca(SSL_CTX* context, const TlsFiles& files) {
  if (SSL_CTX_load_verify_locations(context, files.client_ca.c_str(), nullptr) != 1) {
    fail("TLS client CA " + files.client_ca);
  }
  // OpenSSL reads the extensions of a certificate when it first looks at them: now, not on several threads.
  const STACK_OF(X509_OBJECT)* objects = X509_STORE_get0_objects(SSL_CTX_get_cert_store(context));
  for (int i = 0; i < sk_X509_OBJECT_num(objects); ++i) {
    X509* authority = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(objects, i));
    if (authority != nullptr) X509_check_purpose(authority, -1, 0);
  }
  SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(files.client_ca.c_str()));
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A resumed session is not checked again, and resuming it gives a new ticket: a client could go on for ever
  // with a certificate that has expired. So each connection of a client with a certificate shows it.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
}

// Each authority in a client's chain must have a list that has not expired, or the client is refused.
void read_crl(SSL_CTX* context, const std::string& path) {
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  X509_LOOKUP* lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
  if (lookup == nullptr || X509_load_crl_file(lookup, path.c_str(), X509_FILETYPE_PEM) < 1) {
    fail("TLS revocation list " + path);
  }
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
}

Context make_context(const TlsFiles& files) {
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) fail("TLS");
  set_rules(context.get());
  read_certificate(context.get(), files);
  if (!files.client_ca.empty()) read_client_ca(context.get(), files);
  if (!files.crl.empty()) read_crl(context.get(), files.crl);
  return context;
}

void add_name(std::vector<std::string>& names, std::string_view kind, const ASN1_STRING* text) {
  unsigned char* utf8 = nullptr;
  const int size = ASN1_STRING_to_UTF8(&utf8, text);
  if (size < 0) return;
  names.emplace_back(kind).append(reinterpret_cast<const char*>(utf8), static_cast<size_t>(size));
  OPENSSL_free(utf8);
}

void add_alternative_names(std::vector<std::string>& names, const X509* certificate) {
  auto* list =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  if (list == nullptr) return;
  for (int i = 0; i < sk_GENERAL_NAME_num(list); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(list, i);
    if (name->type == GEN_DNS) add_name(names, "DNS:", name->d.dNSName);
    if (name->type == GEN_URI) add_name(names, "URI:", name->d.uniformResourceIdentifier);
  }
  GENERAL_NAMES_free(list);
}

}  // namespace

TlsContext::TlsContext(TlsFiles files) : files_(std::move(files)), context_(make_context(files_).release()) {}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

void TlsContext::reload() {
  Context fresh = make_context(files_);
  const std::lock_guard lock(mutex_);
  SSL_CTX_free(std::exchange(context_, fresh.release()));
}

SSL* TlsContext::open_session() const {
  const std::lock_guard lock(mutex_);
  SSL* session = SSL_new(context_);
  if (session == nullptr) throw std::bad_alloc();
  return session;
}

std::vector<std::string> certificate_names(const SSL* session) {
  std::vector<std::string> names;
  X509* certificate = SSL_get_peer_certificate(session);
  if (certificate == nullptr) return names;
  const X509_NAME* subject = X509_get_subject_name(certificate);
  for (int i = -1; (i = X509_NAME_get_index_by_NID(subject, NID_commonName, i)) >= 0;) {
    add_name(names, "CN:", X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, i)));
  }
  add_alternative_names(names, certificate);
  X509_free(certificate);
  ERR_clear_error();  // of a name that cannot be read
  return names;
}

}  // namespace fused_mlp::front
